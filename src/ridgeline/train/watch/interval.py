"""What happened since the last line of the log, brought together over the ranks, and the log.

Losses stay on the device until a line is written, so that logging every tenth step waits for the
device every tenth step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from ridgeline.errors import NO_ROOM
from ridgeline.records.appended import AppendedFile
from ridgeline.records.training_run import FILE, LoggedStep
from ridgeline.train.part import Part
from ridgeline.train.ranks import Ranks
from ridgeline.train.watch.devices import DeviceWatch
from ridgeline.train.watch.phases import NAMES, Phases

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What the kernel takes as "reset the high-water mark" (proc_pid_clear_refs(5))."""


class LogInterval:
    """The steps since the last line; `line` begins the next. Every rank must call it."""

    def __init__(
        self, ranks: Ranks, flops_per_token: float | None, peak_flops_per_second: float | None
    ) -> None:
        """Begin at the start of a run.

        Args:
            ranks: Among which figures are brought together.
            flops_per_token: Model FLOPs of training on one token.
            peak_flops_per_second: Of one device, dense, in the run's precision; None: no MFU.
        """
        self.phases = Phases(ranks.device)
        self._ranks = ranks
        self._flops_per_token = flops_per_token
        self._peak = peak_flops_per_second
        self.totals = dict.fromkeys((*NAMES, "other"), 0.0)
        """Seconds of each phase over the whole start, mean over ranks."""
        self._loss = torch.zeros((), device=ranks.device)
        self._targets = 0
        self._norm: float | None = None

    def add(self, loss: Tensor, targets: int, norm: float | None) -> None:
        """Add a step with the sum of this rank's losses and the target tokens of all ranks."""
        self._loss = self._loss + loss
        self._targets += targets
        self._norm = norm

    def line(
        self,
        step: int,
        samples: Sequence[float],
        parts: Sequence[Part],
        memory: PeakMemory,
        validation_loss: float | None,
    ) -> LoggedStep:
        """What the log says of the steps since the last line.

        Args:
            step: Steps done.
            samples: Seconds of each step of the interval.
            parts: The techniques of the run, which have fields of their own.
            memory: This rank's.
            validation_loss: Taken in this interval, if it was.
        """
        ranks, steps = self._ranks, len(samples)
        loss = self._loss.double()
        if ranks.size("data") > 1:
            dist.all_reduce(loss, group=ranks.group("data"))
        seconds = sum(samples)
        table = self._everywhere(self._mine(seconds, memory))
        phases = {name: float(table[:, place].mean()) for place, name in enumerate(self.totals)}
        for name, value in phases.items():
            self.totals[name] += value
        alone = any(part.ranks_alone for part in parts)
        targets = self._targets * (ranks.size("data") if alone else 1)
        rate = targets / seconds
        by_rank = [dict(zip(self.totals, row, strict=False)) for row in table.tolist()]
        figures: dict[str, Any] = {}
        for part in parts:
            figures |= part.figures(steps, by_rank)
        found = LoggedStep(
            step=step,
            loss=float(loss) / max(1, targets),
            gradient_norm=self._norm,
            step_seconds=seconds / steps,
            tokens_per_second=rate,
            mfu=self._mfu(rate),
            phases={name: value / steps for name, value in phases.items()},
            peak_memory_bytes=float(table[:, -1].max()),
            validation_loss=validation_loss,
            **figures,
        )
        self._clear()
        return found

    def _clear(self) -> None:
        self._loss = torch.zeros((), device=self._ranks.device)
        self._targets = 0
        self._norm = None

    def _mine(self, seconds: float, memory: PeakMemory) -> list[float]:
        taken: Mapping[str, float] = self.phases.take()
        known = [taken[name] for name in NAMES]
        return [*known, max(0.0, seconds - sum(known)), float(memory.peak_bytes() or 0)]

    def _everywhere(self, mine: list[float]) -> Tensor:
        """One row for each rank."""
        row = torch.tensor(mine, dtype=torch.float64, device=self._ranks.device)
        rows = row.new_empty(self._ranks.world, len(mine))
        dist.all_gather(list(rows), row)
        return rows.cpu()

    def _mfu(self, tokens_per_second: float) -> float | None:
        if self._flops_per_token is None or self._peak is None:
            return None
        return tokens_per_second * self._flops_per_token / (self._peak * self._ranks.world)


class PeakMemory:
    """The most memory that a rank has held, without what it held when this was made.

    On CUDA, PyTorch's allocator keeps the peak. On the host it is the high-water mark of the
    process's resident memory (`VmHWM` of /proc/self/status, reset through /proc/self/clear_refs),
    so pages that the libraries themselves took before are left out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif _STATUS.exists():
            _CLEAR.write_text(_RESET_PEAK)
            self._before = _status_bytes("VmRSS")

    def peak_bytes(self) -> int | None:
        """The highest use so far; None where this system does not tell."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status_bytes("VmHWM") - self._before if _STATUS.exists() else None


def _status_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


_SCALARS = (
    "loss",
    "validation_loss",
    "learning_rate",
    "gradient_norm",
    "step_seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
    "bytes_sent",
    "skipped_steps",
    "loss_scale",
    "top1",
    "decoded_per_second",
    "input_bound_share",
)

_OF_A_DEVICE = ("busy_share", "memory_bytes", "watts", "celsius", "clock_hz")


class TrainingLog:
    """The log of a run: one JSON line per logged step, on disk on return, and TensorBoard.

    A crash leaves whole lines and at most one that is cut short; a restarted run goes on in the
    same files without it.
    """

    def __init__(self, folder: Path, devices: DeviceWatch | None = None) -> None:
        """Write into `folder`; what `devices` has seen goes into every line."""
        self._devices = devices
        folder.mkdir(parents=True, exist_ok=True)
        self._file = AppendedFile(folder / FILE)
        self._folder = folder / "tensorboard"
        self._board: SummaryWriter | None = SummaryWriter(str(self._folder))

    def write(self, line: LoggedStep) -> None:
        """Write one step, which is on disk when this returns."""
        if self._devices is not None:
            devices, problem = self._devices.take()
            note = "; ".join(one for one in (line.note, problem) if one)
            line = msgspec.structs.replace(line, devices=devices, note=note)
        self._file.append(msgspec.json.encode(line), sync=True)
        try:
            if self._board is None:
                self._board = SummaryWriter(str(self._folder))
            _show(line, self._board)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The board's thread is dead; the next line opens another file.
            self._board = None

    def close(self) -> None:
        """Close the files; nothing more will come."""
        if self._devices is not None:
            self._devices.close()
        self._file.close()
        if self._board is not None:
            with suppress(OSError):  # a board that found no room; the log has the lines
                self._board.close()


def _show(line: LoggedStep, board: SummaryWriter) -> None:
    for name in _SCALARS:
        value = getattr(line, name)
        if value is not None:
            board.add_scalar(name, value, line.step)
    for name, seconds in line.phases.items():
        board.add_scalar(f"seconds/{name}", seconds, line.step)
    for device in line.devices:
        for name in _OF_A_DEVICE:
            value = getattr(device, name)
            if value is not None:
                board.add_scalar(f"gpu{device.index}/{name}", value, line.step)
    if line.straggler:
        board.add_text("straggler", line.straggler, line.step)
