"""What the user asks of a tuning job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.realtime.cures import cure
from ridgeline.records.overwriting import note_input


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTuning:
    """What the user asked for."""

    pipeline: str
    out: Path
    budget_seconds: float = 900.0
    threshold: float = 0.02
    """Keep what is faster by more than this beyond doubt."""
    may_fall: float = 0.01
    """Share by which a figure of merit may fall below the baseline's."""
    only: tuple[str, ...] = ()
    frames: int = 48
    """Frames of the first sensor that are recorded."""

    def __post_init__(self) -> None:
        check_script(self.pipeline)
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out}: is a file; give the name of a folder")
        for name in self.only:
            cure(name)
        for option, value, least in (
            ("--budget", self.budget_seconds, 1.0),
            ("--threshold", self.threshold, 0.0),
            ("--may-fall", self.may_fall, 0.0),
            ("--frames", self.frames, 24),
        ):
            if not value >= least:
                raise InputError(f"{option} {value:g}: give {least:g} or more")


def check_script(source: str) -> None:
    """Refuse what is no script, before a process is started to read it.

    Raises:
        InputError: `pipeline.py` or `pipeline.py:NAME` is no such file.
    """
    file, _, name = source.rpartition(":")
    path = Path(file if file.endswith(".py") and name else source)
    if path.suffix != ".py":
        raise InputError(f"{source}: is no Python script; give pipeline.py or pipeline.py:NAME")
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    note_input(path)
