"""A question for each record that no scenario tells: which cause was found in it, and its cure.

The other options are causes of the other records, but for those that this one shows as well. The
record's source stands in the solution, since names of scripts tell too much.
"""

from __future__ import annotations

import functools
import random
from hashlib import blake2b
from typing import Any

from ridgeline.drills.evidence import lines_of, record, record_names, source_of
from ridgeline.drills.scenarios import choice, scenarios
from ridgeline.drills.solved import SolvedQuestion
from ridgeline.records.drill import DrillQuestion, WorkedStep

TOPIC = "diagnosis"
_OPTIONS = 4
_SAYS_NOTHING = ("window", "step_us", "longest_gap_call", "below_unknown_roof_share")


@functools.cache
def case_names() -> dict[str, str]:
    """Name of a question → the record behind it: all in which something was found.

    A question's name says nothing of its record, and stays when others come.
    """
    told = {one.record for one in scenarios().values()}
    cases = [name for name in record_names() if name not in told and _findings(record(name))]
    return {f"case-{blake2b(name.encode(), digest_size=2).hexdigest()}": name for name in cases}


def ask_cause(name: str, seed: int) -> SolvedQuestion:
    """A record as a question."""
    draw = random.Random(f"{name}:{seed}")
    content = record(case_names()[name])
    first = _findings(content)[0]
    shown_too = {one["cause"] for one in _findings(content)}
    others = {
        one["cause"]: one["cure"]
        for other in record_names()
        for one in _findings(record(other))[:1]
        if one["cause"] not in shown_too and one["cure"] != first["cure"]
    }
    causes = draw.sample(sorted(others), _OPTIONS - 1)
    what, right_cause = choice(
        "Which cause comes first?",
        _spelled(first["cause"]),
        [_spelled(one) for one in causes],
        draw,
    )
    cures = dict.fromkeys(others[one] for one in causes)
    cure, right_cure = choice("What do you do?", first["cure"], list(cures), draw)
    return SolvedQuestion(
        question=DrillQuestion(
            id=f"{name}:{seed}",
            topic=TOPIC,
            text=f"{_about(content)} Name the cause that costs most, and its cure.",
            evidence=[*_phases(content), *lines_of(first["evidence"], _SAYS_NOTHING)],
            asks=[what, cure],
        ),
        right=(right_cause, right_cure),
        solution=(
            WorkedStep(says=first["summary"], command=source_of(content), result=first["cause"]),
        ),
    )


def _findings(content: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content.get("findings") or content.get("verdict") or []
    return found


def _spelled(cause: str) -> str:
    return cause.replace("-", " ")


def _about(content: dict[str, Any]) -> str:
    if "files" in content:
        ranks = len(content["files"])
        return f"A profiler trace of {'one GPU' if ranks == 1 else f'{ranks} GPUs'}."
    profile = content["profile"]
    size = profile["models"][0]["num_parameters"] / 1e6
    ranks = profile["world_size"]
    where = f"on {ranks} ranks" if ranks > 1 else "in one process"
    return f"A model of {size:.3g} million parameters trains {where} on a CPU."


def _phases(content: dict[str, Any]) -> list[str]:
    if "profile" not in content:
        return []
    phases = content["profile"]["phases"]
    total = sum(one["p50"] for one in phases.values())
    if not total:
        return []
    parts = [f"{name} {one['p50'] / total:.0%}" for name, one in phases.items() if one["p50"] > 0]
    return [f"a step of {content['profile']['step_seconds']['p50']:.3g} s: {', '.join(parts)}"]
