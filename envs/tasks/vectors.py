"""The check that a group acts on the vectors that a task is made of."""

from __future__ import annotations

from rppdyn.groups import Group

__all__ = ["check_acts_on"]


def check_acts_on(group: Group, d: int, task: str, own: Group) -> None:
    """Refuse a group that does not act on R^d.

    Args:
        task: what has vectors in R^d, for the message.
        own: a group that does act on them, for the message.
    Raises:
        ValueError: the group acts on another space.
    """
    if group.d != d or group.is_complex:
        field = "C" if group.is_complex else "R"
        raise ValueError(
            f"group={group}: acts on {field}^{group.d}, and {task}'s vectors are in R^{d}; "
            f"use a group of real {d} x {d} matrices, such as {own}"
        )
