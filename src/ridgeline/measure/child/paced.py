"""Hold a script at its step boundaries until the next step is due, as a camera's frames come.

A step of a script that answers ends with the call of its model: it waits there, and takes the next
frame, where it would have gone on at once. The wait is in no step's time.
"""

from __future__ import annotations

from ridgeline.measure.calls.loop import CallMeter, CallSample, Timetable


class PacedSteps:
    """Steps noted one by one, at a period or in a closed loop."""

    def __init__(self, period_seconds: float | None, *, on_gpu: bool) -> None:
        self.samples: list[CallSample] = []
        self._on_gpu = on_gpu
        self._timetable = None if period_seconds is None else Timetable(period_seconds)
        self._meter = CallMeter()
        self._meter.__enter__()
        self._meter.begin()

    def ended(self) -> None:
        """A step has ended."""
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
        late_at = None if self._timetable is None else self._timetable.late_at
        self.samples.append(self._meter.end(late_at))

    def next(self) -> None:
        """Wait until the next step is due, which then begins."""
        if self._timetable is not None:
            self._timetable.wait()
        self._meter.begin()

    def close(self) -> None:
        """Stop noting what steps do."""
        self._meter.__exit__()
