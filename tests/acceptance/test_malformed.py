"""300 command lines at random that are wrong: one line on standard error, exit status 2, and nothing is made."""

from __future__ import annotations

from collections import Counter

from malformed import command_lines

from rppdyn.cli import VERBS, main


def test_malformed_command_lines_end_in_one_line(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    lines = list(command_lines(seed=3, count=300))
    assert (
        set(VERBS) <= {words[0] for words in lines}
        and min(Counter(words[0] for words in lines if words[0] in VERBS).values()) > 5
    )
    wrong = []
    for words in lines:
        status = main(words)
        out, err = capfd.readouterr()
        said = err.startswith("rppdyn: error: ") and err.count("\n") == 1 and err[:-1].isprintable()
        if status != 2 or out or not said or list(tmp_path.iterdir()):
            wrong.append((words, status, out[-200:], err[-200:]))
    assert not wrong, wrong[:3]
