"""The log of a run: one JSON line per logged step, on disk on return, and TensorBoard.

A crash leaves whole lines and at most one that is cut short; a restarted run goes on without it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from torch.utils.tensorboard import SummaryWriter

from ridgeline.errors import NO_ROOM
from ridgeline.records.appended import AppendedFile
from ridgeline.records.training_log import FILE
from ridgeline.records.training_run import LoggedStep
from ridgeline.train.watch.devices import DeviceWatch

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
    """A writer of the log; a restarted run goes on in the same files."""

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
