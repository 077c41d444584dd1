"""The tuning job as the user asks for it, and the ledger that comes of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from ridgeline.hardware.environment import environment
from ridgeline.realtime.tuning.asked import PipelineTuning
from ridgeline.realtime.tuning.search import PipelineSearch
from ridgeline.realtime.tuning.stack_file import run_options, write_stack
from ridgeline.records.realtime_ledger import RealtimeLedger

LEDGER_NAME = "ledger.json"


def tune_pipeline(job: PipelineTuning, on_progress: Callable[[str], None]) -> RealtimeLedger:
    """Run a job; writes `stack.toml` and `tuned.py` into its folder.

    An interruption ends the search, and what was kept so far is proved.

    Raises:
        InputError: The pipeline cannot be read, or fails without any cure.
    """
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-realtime-"))
    search: PipelineSearch | None = None
    try:
        search = PipelineSearch(job, on_progress, folder)
        with suppress(KeyboardInterrupt):
            search.search()
            return _ledger(search, job, complete="the time ran out" not in search.skipped.values())
        on_progress("interrupted: proving what was kept so far")
        return _ledger(search, job, complete=False)
    finally:
        if search is not None:
            search.close()
        shutil.rmtree(folder, ignore_errors=True)


def _ledger(search: PipelineSearch, job: PipelineTuning, *, complete: bool) -> RealtimeLedger:
    found, checked = search.prove()
    base = search.figures(search.base, *(
        ([], []) if found is None else (found.a_latencies, found.a_stages)
    ))  # fmt: skip
    tuned = None
    if found is not None:
        tuned = search.figures(search.best, found.b_latencies, found.b_stages)
    stack = search.best.stack
    high = found.interval.high if found is not None else 1.0
    return RealtimeLedger(
        pipeline=search.base.opened.name,
        file=job.pipeline,
        deadline_seconds=search.base.opened.deadline_seconds,
        baseline=base,
        tuned=tuned,
        rows=search.rows,
        stack_rows=[one.name for one in stack],
        cumulative=1.0 if found is None else found.interval.ratio,
        cumulative_ci=(1.0, 1.0) if found is None else (
            found.interval.low, high if np.isfinite(high) else found.interval.ratio
        ),
        verified=checked is None or checked.passed,
        verification="" if checked is None else checked.summary,
        skipped=search.skipped,
        environment=environment(variables=("OMP_NUM_THREADS",)),
        complete=complete,
        stack=str(write_stack(job.out, job.pipeline, stack)) if stack else None,
        run_options=run_options(stack, search.base.opened.threads),
        notes=search.notes,
    )  # fmt: skip
