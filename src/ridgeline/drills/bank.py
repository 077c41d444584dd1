"""Every question that can be asked, by topic and by name; a question again from its id."""

from __future__ import annotations

import difflib
import functools
import random
from collections.abc import Callable, Sequence

from ridgeline.drills import causes
from ridgeline.drills import scenarios as failures
from ridgeline.drills.questions import ask_row, tables
from ridgeline.drills.solved import SolvedQuestion
from ridgeline.errors import InputError

LARGEST_SEED = 2**63


@functools.cache
def _makers() -> dict[str, tuple[str, Callable[[int], SolvedQuestion]]]:
    """Name of a question → its topic and what makes it from a seed."""
    found: dict[str, tuple[str, Callable[[int], SolvedQuestion]]] = {}
    for table in tables():
        for row in table.question:
            found[row.name] = (table.topic, functools.partial(ask_row, table.topic, row))
    for name, scenario in failures.scenarios().items():
        found[name] = (failures.TOPIC, functools.partial(failures.ask_scenario, name, scenario))
    for name in causes.case_names():
        found[name] = (causes.TOPIC, functools.partial(causes.ask_cause, name))
    return found


def topics() -> dict[str, list[str]]:
    """Topic → the names of its questions."""
    found: dict[str, list[str]] = {}
    for name, (topic, _) in _makers().items():
        found.setdefault(topic, []).append(name)
    return found


def pick(seed: int, count: int, chosen: Sequence[str] = ()) -> list[SolvedQuestion]:
    """Draw that many questions from all topics or the chosen ones; the seed decides all of it.

    No kind comes twice before every kind has come, and topics take turns.

    >>> [one.question.id for one in pick(1, 2, ["MFU"])] == [
    ...     one.question.id for one in pick(1, 2, ["mfu"])
    ... ]
    True

    Raises:
        InputError: There is no such topic.
    """
    names = [_topic(one) for one in chosen] or list(topics())
    draw = random.Random(f"drill:{seed}")
    decks: dict[str, list[str]] = {topic: [] for topic in dict.fromkeys(names)}
    turn: list[str] = []
    found = []
    for _ in range(count):
        if not turn:
            turn = draw.sample(list(decks), len(decks))
        deck = decks[turn.pop()]
        topic = next(one for one, cards in decks.items() if cards is deck)
        if not deck:
            deck += draw.sample(topics()[topic], len(topics()[topic]))
        found.append(question_of(f"{deck.pop()}:{draw.randrange(2**31)}"))
    return found


def question_of(identity: str) -> SolvedQuestion:
    """The question with that id.

    >>> question_of("adam-states:7").question.topic
    'training memory'

    Raises:
        InputError: It is no id of a question.
    """
    name, _, seed = identity.rpartition(":")
    if name not in _makers():
        near = difflib.get_close_matches(name or identity, _makers(), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else "see `ridgeline drill --list`"
        raise InputError(f"no question {identity[:80]!r}; {hint}")
    if not (seed.isascii() and seed.isdecimal() and len(seed) < 20 and int(seed) < LARGEST_SEED):
        raise InputError(f"question {identity[:80]!r}: {seed[:20]!r} is no seed; write {name}:7")
    return _makers()[name][1](int(seed))


def _topic(text: str) -> str:
    known = {_folded(one): one for one in topics()}
    folded = _folded(text)
    if folded in known:
        return known[folded]
    begins = [one for low, one in known.items() if folded and folded in low]
    if len(begins) == 1:
        return begins[0]
    raise InputError(f"no topic {text!r}; use one of: {', '.join(topics())}")


def _folded(text: str) -> str:
    return text.strip().lower().replace("-", " ").replace("_", " ")
