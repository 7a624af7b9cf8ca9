"""What is shown of measured errors."""

from __future__ import annotations

from rppdyn.jobs.measure import most


def test_the_largest_entries_are_shown_where_there_are_many():
    errors = {"a": 0.1, "b": 0.3, "c": 0.2}
    assert list(most(errors, 3)) == ["a", "b", "c"]
    assert most(errors, 2) == {"b": 0.3, "c": 0.2}
