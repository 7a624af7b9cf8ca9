"""The section of a report on agents from files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rppdyn.jobs.measuring.agent_file import FileAgent
from rppdyn.jobs.reporting.html import Markup, joined, table, tag
from rppdyn.jobs.reporting.words import MISSING, plain, scientific

__all__ = ["section"]


def section(agents: Sequence[FileAgent]) -> tuple[str, Markup]:
    """Returns of episodes, and equivariance errors by generator."""
    rows, errors = [], []
    for agent in agents:
        returns, lengths = np.array(agent.returns), np.array(agent.lengths)
        each = ", ".join(map(plain, agent.returns))
        name = tag("code", agent.file)
        rows.append(
            [
                name,
                agent.env,
                agent.policy,
                plain(float(returns.mean())),
                plain(float(returns.std())),
                plain(float(lengths.mean())),
                each,
            ]
        )
        errors += [[name, generator, scientific(error)] for generator, error in agent.errors.items()]
        if agent.note:
            errors.append([name, agent.note, MISSING])
    head = ["file", "environment", "policy", "mean return", "standard deviation", "mean length", "each episode"]
    note = "They are played from the same resets as the evaluations of runs. A file has no record of its training."
    return (
        "Agents from files",
        joined(
            [
                table("Episodes of the deterministic policies", head, rows, (3, 4, 5)),
                table("Equivariance errors of the policies", ["file", "generator", "policy"], errors, (2,)),
                tag("p", note, class_="note"),
            ]
        ),
    )
