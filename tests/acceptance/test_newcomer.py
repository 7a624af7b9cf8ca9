"""What a first user types stands on the pages; `make newcomer` types it."""

from __future__ import annotations

from acceptance import newcomer


def test_commands_stand_on_their_pages_and_sizes_take_the_place_of_what_the_page_says():
    assert [action.command for action in newcomer.ACTIONS if not newcomer.on_page(action)] == []
    assert len(newcomer.ACTIONS) == 20
    action = newcomer.Action("README.md", "rppdyn collect env=X --steps 50000 seeds=10", "", "--steps 7 seeds=1")
    assert newcomer.words_of(action, {})[3:] == ["collect", "env=X", "--steps", "7", "seeds=1"]
