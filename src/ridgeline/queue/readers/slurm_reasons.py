"""Why Slurm itself says that a job does not start, by the reasons in `slurm_reasons.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.queue.doctor.state import ToldReason
from ridgeline.queue.readers.slurm_jobs import LIMITS, reason_of, waits_on_purpose
from ridgeline.queue.readers.slurm_printed import SlurmRow

PLAIN = (
    "none",
    "resources",
    "priority",
    "reqnodenotavail",
    "nodes required",
    "schedule",
    "cleaning",
)
"""How reasons begin by which a job waits for its turn or for nodes, which is found by counting."""


def told_of_job(row: SlurmRow) -> ToldReason | None:
    """The reason of a line of squeue that has a cure of its own, if it is one."""
    reason = reason_of(row).casefold()
    for one in _reasons():
        if reason.startswith(tuple(one["begins"])) and one.get("holds", "") in reason:
            more = row.cells.get(one["cell"], "").strip("()")
            more = "" if more.casefold() in ("null", "n/a") else more
            return ToldReason(way=one["way"], said=one["said"] + (f" ({more})" if more else ""))
    plain = not reason or reason.startswith((*PLAIN, *LIMITS)) or waits_on_purpose(row)
    return None if plain else ToldReason(way="reason", said=f"Slurm says of jobs: {reason_of(row)}")


@cache
def _reasons() -> list[dict[str, Any]]:
    text = (files("ridgeline.queue.readers") / "slurm_reasons.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["reason"]
    return found
