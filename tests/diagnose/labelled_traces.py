"""Traces whose bottleneck is known: shared captures, public ones, and simulated runs.

`shared_traces.toml` and `../public/traces.toml` say what the first finding on a real capture may
be, after reading it; a simulated run is executed again without each of its faults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.trace.simulated.kineto import write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import Case, Truth, truth_of

from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.load import load_traces

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
PUBLIC_TABLE = Path(__file__).parents[1] / "public" / "traces.toml"


REFUSED = "refused"
"""In place of a cause: what is no profiler trace is refused with one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The files of one job, and what its first finding may be."""

    paths: tuple[Path, ...]
    """A file, a folder of ranks, or a file per rank."""
    causes: frozenset[str]
    confidence_at_most: float = 1.0
    """More is too much where the files do not hold what would be needed to know."""


@cache
def shared_traces() -> dict[str, Capture]:
    """The captures of the shared data by name."""
    rows = tomllib.loads(Path(__file__).with_name("shared_traces.toml").read_text())
    return {
        name: Capture(paths=(SHARED / row["path"],), causes=frozenset(row["causes"]))
        for name, row in rows.items()
    }


def public_traces(folder: Path) -> dict[str, Capture]:
    """Captures of public repositories whose files lie below `folder` as OWNER/NAME/COMMIT/PATH.

    Those whose files are not there are left out.
    """
    found = {}
    for row in tomllib.loads(PUBLIC_TABLE.read_text())["trace"]:
        root = folder / row["repository"].removeprefix("https://github.com/") / row["commit"]
        paths = tuple(root / path for path in row["files"])
        if all(path.is_file() for path in paths):
            causes = [*row.get("causes", []), *([REFUSED] if row.get("refused") else [])]
            found[row["name"]] = Capture(
                paths=paths, causes=frozenset(causes),
                confidence_at_most=row.get("confidence_at_most", 1.0),
            )  # fmt: skip
    return found


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
