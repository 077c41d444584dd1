"""Traces whose bottleneck is known: shared captures, public ones, and simulated runs.

`shared_traces.toml` and `../public/traces.toml` say what the first finding on a real capture may
be, after reading it; a simulated run is executed again without each of its faults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from tests.trace.simulated.kineto import write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import Case, Truth, truth_of

from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.load import load_traces

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
PUBLIC_TABLE = Path(__file__).parents[1] / "public" / "traces.toml"


class LabelledTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A capture and the causes that its first finding may have."""

    path: str
    """A file, or a folder of ranks."""
    causes: tuple[str, ...]
    url: str = ""
    commit: str = ""
    note: str = ""


@cache
def shared_traces() -> dict[str, LabelledTrace]:
    """The captures of the shared data by name; `path` is below `SHARED`."""
    return _table(Path(__file__).with_name("shared_traces.toml"))


def public_traces() -> dict[str, LabelledTrace]:
    """Captures of public repositories by name; empty where the table is not there."""
    return _table(PUBLIC_TABLE) if PUBLIC_TABLE.exists() else {}


def _table(path: Path) -> dict[str, LabelledTrace]:
    rows = tomllib.loads(path.read_text())
    return {name: msgspec.convert(row, LabelledTrace) for name, row in rows.items()}


def verdict_on(paths: Path | Sequence[Path]) -> list[TraceFinding]:
    """What `ridgeline doctor --trace` finds in the ranks of one job."""
    return trace_verdict(load_traces(paths, details=True))


def simulated_verdict(case: Case, folder: Path) -> tuple[Truth, list[TraceFinding]]:
    """What is true of a case, and what its traces are judged to be."""
    run = simulate(case.program(), case.seed)
    paths = write_run(run, folder, case.schema())
    if case.only_rank >= 0:
        paths = [paths[case.only_rank]]
    return truth_of(case, run), verdict_on(paths)
