"""The cures that were kept, as `stack.toml`, and `tuned.py`, which is the pipeline with them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.realtime.cures import RunChoice, choice_after, cure
from ridgeline.realtime.pipeline import Pipeline, read_pipeline
from ridgeline.realtime.tuning.wire import AppliedCure
from ridgeline.records.input_file import read_toml
from ridgeline.records.store import write_atomically

STACK_NAME = "stack.toml"
TUNED_NAME = "tuned.py"
_TUNED = '''"""The pipeline of {name} with the cures that `ridgeline realtime tune` proved."""

from pathlib import Path

from ridgeline.realtime.tuning.stack_file import tuned_pipeline

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
