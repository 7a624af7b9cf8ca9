"""Command lines that no verb can make sense of, drawn at random, of every verb that there is.

Each is one that a user may type and that is wrong by itself, whatever the machine: it needs no run and no environment of the
user's, and must be refused before any work.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from rppdyn.cli import VERBS, Parser
from rppdyn.jobs.config.compose import SCHEMAS, groups
from rppdyn.settings import keys_of

FIT_NAMES = {schema.verb: name for name, schema in SCHEMAS.items()}
"""The configuration of each verb that has one."""

OPTIONAL = ("agent.ppo", "agent.crossq")
"""Sections that are of one choice alone."""

NOISE = ["", " ", "\t", "\n", "\x1b[31m", "ä€😀", "\udcff", "x" * 5000, "'", '"', "\\", "${", "$(ls)", "a b", "-"]
NO_NUMBERS = ["many", "nan", "-1", "1e400", "0x10", "1,5", "[1,2]", "{a:1}", "${nowhere}", "null", "", "1 2", "٣x"]
NOT_THERE = ["absent", "no/such/place", "/dev/null/x", "file.txt", "file.txt/x", "ö/ä", "../absent", "a" * 300, "."]
GRAMMAR = ["=", "==", "=1", "seed", "seed==1", "seed=[1", "seed={", "seed=a b", "seed='1", "+", "~", "++", "+seed", "~nokey",
           "seed=${nowhere}", "seed=${oc.env:NO_SUCH_VARIABLE}", "seed=${", "seed=[1,2]", "seed={a:1}", "+seed=1x", "seed@x=1",
           "seed=choice(1,2", "seed=range(0,0)", "seed=1,2", "hydra/launcher=nonsense", "+hydra.nokey=1", "hydra.run=3",
           "hydra=1", "~hydra.job", "+hydra/nogroup=x", "seed=1;2", "seed:1", "--seed", "-seed=1", "???=1"]  # fmt: skip


def command_lines(seed: int, count: int) -> Iterator[list[str]]:
    """So many malformed command lines, the verbs in turn."""
    rng = random.Random(seed)
    for i in range(count):
        verb = list(VERBS)[i % len(VERBS)]
        kinds = [_unknown_verb, _flag_without_sense, _bad_flag_value, _too_many]
        if verb in FIT_NAMES:
            kinds = [_unknown_verb, _flag_without_sense,
                     *[_unknown_key, _bad_value, _bad_choice, _grammar, _prefix] * 2]  # fmt: skip
        yield rng.choice(kinds)(rng, verb)


def _flags(verb: str) -> tuple[list[argparse.Action], list[argparse.Action]]:
    """A verb's positional arguments and its flags, but for --help."""
    parser = Parser(prog=verb)
    VERBS[verb].arguments(parser)
    actions = [action for action in parser._actions if action.dest != "help"]
    return [a for a in actions if not a.option_strings], [a for a in actions if a.option_strings]


def _misspelt(rng: random.Random, word: str) -> str:
    i = rng.randrange(len(word))
    return rng.choice([word[:i] + "qx" + word[i:], word + "zz", word[:i] + "ß" + word[i + 1 :], word.upper() + "0"])


def _needed(verb: str) -> list[str]:
    """The arguments without which a verb says what is missing; they name what is not there."""
    positional, flags = _flags(verb)
    words = ["absent" for action in positional if action.nargs not in ("*", "?")]
    for action in flags:
        if action.required:
            words += [action.option_strings[0], "absent.png"]
    return words + (["--from", "absent"] if verb == "collect" else [])


def _unknown_verb(rng: random.Random, verb: str) -> list[str]:
    return [_misspelt(rng, verb), *_needed(verb)]


def _flag_without_sense(rng: random.Random, verb: str) -> list[str]:
    _, flags = _flags(verb)
    known = rng.choice(flags).option_strings[-1] if flags else "--json"
    flag = rng.choice([f"--{_misspelt(rng, known.lstrip('-'))}", "---", f"-{rng.choice('qzx')}", "--no-such", "-ö"])
    return [verb, *_needed(verb), flag, *rng.choice([[], ["1"], ["absent"]])]


def _bad_flag_value(rng: random.Random, verb: str) -> list[str]:
    _, flags = _flags(verb)
    flag = rng.choice([a for a in flags if a.nargs != 0] or [None])
    if flag is None:
        return [verb, *_needed(verb), rng.choice(NOISE)]
    name = flag.option_strings[-1]
    if rng.random() < 0.2:
        return [verb, *_needed(verb), name]  # its value is missing
    value = rng.choice(NO_NUMBERS if flag.type is int else NOISE if flag.choices else NOISE + NOT_THERE)
    return [verb, *_needed(verb), rng.choice([f"{name}={value}", f"{name}={value}", f"{name}={value}{value}"])]


def _too_many(rng: random.Random, verb: str) -> list[str]:
    words = [rng.choice(NOT_THERE + NOISE) for _ in range(rng.randint(1, 4))]
    return [verb, *rng.choice([words, [*_needed(verb), *words], [] if _needed(verb) else words])]


def _unknown_key(rng: random.Random, verb: str) -> list[str]:
    key = _misspelt(rng, rng.choice(list(keys_of(SCHEMAS[FIT_NAMES[verb]]))))
    return [verb, f"{rng.choice(['', '+', '++'])}{key}={rng.choice(['1', 'x', *NO_NUMBERS])}"]


def _numeric_keys(verb: str) -> list[str]:
    keys = keys_of(SCHEMAS[FIT_NAMES[verb]])
    return [key for key, item in keys.items() if item.annotation in (int, float, bool) and not key.startswith(OPTIONAL)]


def _bad_value(rng: random.Random, verb: str) -> list[str]:
    key = rng.choice(_numeric_keys(verb))
    value = rng.choice(["many", "nan", "[1,2]", "{a:1}", "${nowhere}", "null", "''", "1x", "1-2", "😀", "[]", "1e400x"])
    return [verb, f"{key}={value}"]


def _bad_choice(rng: random.Random, verb: str) -> list[str]:
    key = rng.choice(groups(FIT_NAMES[verb]))
    value = rng.choice(
        ["nonsense", "../x", "null" if key != "experiment" else "no", "1", "[a]", "{a:1}", "a/b", "😀", "a,b"]
    )
    return [verb, f"{key}={value}"]


def _grammar(rng: random.Random, verb: str) -> list[str]:
    multirun = rng.choice([[], ["--multirun"]])
    word = rng.choice(GRAMMAR)
    if multirun and word == "seed=1,2":
        word = "seed=1,x"
    return [verb, *multirun, word]


def _prefix(rng: random.Random, verb: str) -> list[str]:
    known = rng.choice(list(keys_of(SCHEMAS[FIT_NAMES[verb]])))
    return [
        verb,
        rng.choice([f"~{known}", f"+{known}.deeper=1", f"++{known}.deeper=1", f"~{known}=absent", f"+~{known}"]),
    ]
