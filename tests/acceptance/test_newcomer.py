"""What a first user types stands on the pages; `make newcomer` types it."""

from __future__ import annotations

import pytest

from acceptance import newcomer


def test_there_are_twenty_actions():
    assert len(newcomer.ACTIONS) == 20


@pytest.mark.parametrize("action", newcomer.ACTIONS, ids=lambda action: f"{action.page}: {action.command[:40]}")
def test_a_command_stands_on_its_page(action):
    assert newcomer.on_page(action)


def test_sizes_take_the_place_of_what_the_page_says():
    action = newcomer.Action("README.md", "rppdyn collect env=X --steps 50000 seeds=10", "", "--steps 7 seeds=1")
    assert newcomer.words_of(action, {})[3:] == ["collect", "env=X", "--steps", "7", "seeds=1"]
