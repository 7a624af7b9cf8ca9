"""What an error must be like: one line that names the thing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The block must raise a ValueError in one line that contains each of the parts."""
    with pytest.raises(ValueError) as error:
        yield
    message = str(error.value)
    assert "\n" not in message, message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"
