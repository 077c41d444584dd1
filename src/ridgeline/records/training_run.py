"""What a training run left behind: its course and its log, its speed and memory as predicted."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from ridgeline.records import appended
from ridgeline.records.measurement import Environment
from ridgeline.records.recipe import Recipe

FILE = "log.jsonl"


def read_log(folder: Path) -> list[LoggedStep]:
    """Every whole line; one that a crash cut short is left out, as are steps done over.

    A run that was restarted from a checkpoint writes some steps again: the later line counts.
    """
    return LogTail(folder).read()


class LogTail:
    """Reads what has come since the last call."""

    def __init__(self, folder: Path) -> None:
        self._lines = appended.Tail(folder / FILE, _decoded)

    def read(self) -> list[LoggedStep]:
        """New lines, in order of their steps.

        Raises:
            InputError: A line is no `LoggedStep`.
        """
        by_step: dict[int, LoggedStep] = {}
        for found in self._lines.read():
            while by_step and next(reversed(by_step)) >= found.step:
                by_step.popitem()
            by_step[found.step] = found
        return list(by_step.values())


def _decoded(line: bytes) -> LoggedStep:
    content = msgspec.json.decode(line)
    # JSON has no NaN: a loss that was not finite is written as null.
    if isinstance(content, dict) and content.get("loss", 0.0) is None:
        content["loss"] = math.nan
    return msgspec.convert(content, type=LoggedStep)


class Beside(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity as theory had it and as it was seen."""

    predicted: float | None
    """None where nothing predicted it."""
    measured: float | None
    """None where it cannot be measured."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one GPU of rank 0's machine did since the line before."""

    index: int
    samples: int
    """How often it was looked at."""
    busy_share: float | None = None
    """Share of the time in which a kernel ran, however few of its units."""
    memory_bytes: float | None = None
    """The largest that was seen, of all programs on it."""
    watts: float | None = None
    celsius: float | None = None
    """The highest that was seen."""
    clock_hz: float | None = None


class LoggedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log: means over the steps since the line before."""

    step: int
    """Optimizer steps done, this one included."""
    loss: float
    """Mean over the target tokens, or the images, of these steps, in nats."""
    learning_rate: float
    gradient_norm: float | None
    """The gradient norm of the last step, before clipping; None where nothing is clipped."""
    step_seconds: float
    tokens_per_second: float
    """Tokens per second over all ranks; of an image classifier, images."""
    mfu: float | None
    """Model FLOPs over the devices' dense peak; None where the peak is not known."""
    phases: dict[str, float]
    """Phase → seconds of a step, mean over ranks."""
    peak_memory_bytes: float
    """Worst rank, since the run began."""
    bytes_sent: float | None = None
    """By one rank for gradients, per step; None where the wire is not counted."""
    skipped_steps: int = 0
    """Steps without an update so far: gradients overflowed under loss scaling."""
    loss_scale: float | None = None
    validation_loss: float | None = None
    top1: float | None = None
    """Share of the held-out images whose class has the highest logit, where they were judged."""
    decoded_per_second: float | None = None
    """Images that all ranks' workers would decode in a second if nothing held them up."""
    input_bound_share: float | None = None
    """Share of the steps' time in which they waited for images, mean over ranks."""
    unreadable_images: int = 0
    """Images of these steps that could not be decoded; their names stand in the note."""
    disk_bytes_per_second: float | None = None
    """With the optimizer's state on disk, the rate at which this rank read and wrote it."""
    straggler: str = ""
    """The rank and phase that hold the others up, in words; empty where none does."""
    drift: str = ""
    """The phase that has become slower than it was at first, in words; empty where none has."""
    note: str = ""
    """What was out of the ordinary: a batch that was skipped, and why."""
    devices: list[DeviceUse] = []
    """What the GPUs did meanwhile, where they were looked at."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the wall time of a run went, over all its starts; the parts add up to the whole."""

    wall_seconds: float
    """From the first launch to the last event."""
    productive_seconds: float
    """Seconds of steps that stand."""
    lost_seconds: float
    """Steps that were done again, from an earlier checkpoint."""
    checkpoint_seconds: float
    """Saving held the run up."""
    evaluation_seconds: float
    restart_seconds: float
    """From the last step before a failure until the model stood again."""
    starting_seconds: float
    """The first start, until its first step."""
    finishing_seconds: float
    """After the last step: evaluation, export."""
    away_seconds: float
    """Seconds in which nothing ran, from one launch's end to the next launch."""
    restarts: int
    """Starts of the ranks beyond the first of each launch."""
    rollbacks: int

    @property
    def share(self) -> float:
        """Share of the wall time that became progress."""
        return self.productive_seconds / self.wall_seconds if self.wall_seconds else 0.0


class TaughtStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a student learned from one of several teachers."""

    teacher: str
    steps: int
    loss: float | None
    """Mean over the steps of the stage's last line in the log, of what was minimised."""
    validation_loss: float | None
    """At the end of the stage; None where nothing is held out."""
    seconds: float
    """Seconds of its steps, of those that stand."""


class TrainingRun(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="training-run"
):
    """One run of `ridgeline train`, as `run.json` has it."""

    recipe: Recipe
    environment: Environment
    processes: int
    steps: int
    """Optimizer steps done in all."""
    tokens: int
    """Target tokens trained on in all; of an image classifier, images."""
    parameters: int
    trainable_parameters: int
    wall_seconds: float
    """Wall seconds of this start, from the first step to the last."""
    step_samples: list[float]
    """Seconds of each step of this start, as rank 0 saw them."""
    tokens_per_second: float
    """Over all ranks, median step."""
    mfu: float | None
    final_loss: float | None
    """Mean loss of the last logged steps; None where it is no number, or no step was made."""
    validation_loss: float | None
    phases: dict[str, float]
    """Mean seconds of a step, mean over ranks."""
    step_seconds: Beside
    peak_memory_bytes: Beside
    bytes_sent: float | None
    skipped_steps: int
    top1: float | None = None
    """An image classifier's accuracy on the held-out images, at the last evaluation."""
    stopped: str = ""
    """Why it ended before its last step; empty when it did not."""
    goodput: Goodput | None = None
    """The goodput over all starts."""
    teachers: tuple[TaughtStage, ...] = ()
    """With `[[distillation.stages]]`, each stage that was finished."""
    notes: tuple[str, ...] = ()
    """What happened to the run: hangs, batches skipped, in their order."""
