"""The tuning job as the user asks for it, and the ledger that comes of it.

The cures that were kept are written as `stack.toml`, and `tuned.py`, which is the pipeline with
them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.realtime.cures import RunChoice, choice_after, cure
from ridgeline.realtime.pipeline import Pipeline, read_pipeline
from ridgeline.realtime.tuning.asked import PipelineTuning
from ridgeline.realtime.tuning.figures import TimedFrames
from ridgeline.realtime.tuning.measured import SideBySide
from ridgeline.realtime.tuning.search import PipelineSearch
from ridgeline.realtime.tuning.wire import AppliedCure
from ridgeline.records.input_file import read_toml
from ridgeline.records.realtime_ledger import FrameFigures, RealtimeLedger
from ridgeline.records.store import write_atomically

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
    base, tuned = _figures(search, found)
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


def _figures(
    search: PipelineSearch, found: SideBySide | None
) -> tuple[FrameFigures, FrameFigures | None]:
    """What the baseline and, where anything was kept, the whole stack take."""
    if found is None or not found.a_rounds:
        base = search.figures(search.base, None, 1.0 if found is None else 0.5)
        return base, None if found is None else search.figures(search.best, None, 1.0)
    before, after = (
        TimedFrames(found.a_latencies, found.a_stages),
        TimedFrames(found.b_latencies, found.b_stages),
    )
    return search.figures(search.base, before, 0.5), search.figures(search.best, after, 1.0)


STACK_NAME = "stack.toml"
TUNED_NAME = "tuned.py"
_TUNED = '''"""The pipeline of {name} with the cures that `ridgeline realtime tune` proved."""

from pathlib import Path

from ridgeline.realtime.tuning.job import tuned_pipeline

pipeline = tuned_pipeline(Path(__file__).parent / "{stack}")
'''


class PipelineStack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a real-time stack.toml."""

    pipeline: str
    """`pipeline.py` or `pipeline.py:NAME`, relative to the file."""
    cure: list[AppliedCure] = []


def write_stack(folder: Path, pipeline: str, stack: Sequence[AppliedCure]) -> Path:
    """Write both files; returns the path of `tuned.py`."""
    file, colon, name = pipeline.partition(".py:")
    source = Path(file + ".py" if colon else pipeline).resolve()
    where = os.path.relpath(source, folder.resolve()) + (f":{name}" if colon else "")
    lines = [f"pipeline = {json.dumps(where)}"]
    for applied in stack:
        lines += ["", "[[cure]]", f"name = {json.dumps(applied.name)}"]
        if applied.options:
            pairs = (f"{key} = {json.dumps(value)}" for key, value in applied.options.items())
            lines.append(f"options = {{ {', '.join(pairs)} }}")
    write_atomically(folder / STACK_NAME, ("\n".join(lines) + "\n").encode())
    code = _TUNED.format(name=source.name, stack=STACK_NAME)
    write_atomically(folder / TUNED_NAME, code.encode())
    return folder / TUNED_NAME


def tuned_pipeline(path: Path) -> Pipeline:
    """The pipeline of a stack.toml with its cures; programs are made on the first frames.

    Raises:
        InputError: No such file, an unknown cure, or one that no longer fits the pipeline.
    """
    stack = read_toml(path, PipelineStack, cure="`ridgeline realtime tune` writes a stack.toml")
    made = read_pipeline(str(path.parent / stack.pipeline))
    for applied in stack.cure:
        try:
            made = cure(applied.name).apply(made, applied.options)
        except InputError as error:
            raise InputError(f"{path}: {applied.name}: {error}") from None
    return made


def run_options(stack: Sequence[AppliedCure], threads: int) -> str:
    """What `ridgeline realtime run` must be told besides the pipeline."""
    choice = RunChoice(threads=threads)
    for applied in stack:
        choice = choice_after(choice, cure(applied.name), applied.options)
    words = [] if choice.executor == "inline" else [f"--executor {choice.executor}"]
    return " ".join([*words, *(["--steady"] if choice.steady else [])])
