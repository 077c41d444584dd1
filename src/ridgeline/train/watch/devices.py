"""What the GPUs of this machine did between two lines of the log, beside the throughput there.

A thread looks every few seconds (`hardware/gpu_use.py`); a line gets means of shares, power and
clocks and the largest memory and temperature since the line before. A tool that is not there, or
fails, is said once, and nothing is asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from statistics import fmean

from ridgeline.hardware.accelerators import ToolError
from ridgeline.hardware.gpu_use import GpuUse, read_gpu_use
from ridgeline.records.training_run import DeviceUse

USUAL_SECONDS = 5.0


class DeviceWatch:
    """Looks at the GPUs until it is closed."""

    def __init__(
        self, period_seconds: float, read: Callable[[], list[GpuUse]] = read_gpu_use
    ) -> None:
        self._period_seconds = period_seconds
        self._read = read
        self._lock = threading.Lock()
        self._seen: dict[int, list[GpuUse]] = {}
        self._problem = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="device-watch", daemon=True)
        self._thread.start()

    def take(self) -> tuple[list[DeviceUse], str]:
        """What was seen since the last call, and why nothing is, said once."""
        with self._lock:
            seen, self._seen = self._seen, {}
            problem, self._problem = self._problem, ""
        return [_together(index, uses) for index, uses in sorted(seen.items())], problem

    def close(self) -> None:
        """Stop looking, and wait for the thread to end."""
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            try:
                uses = self._read()
            except ToolError as error:
                with self._lock:
                    self._problem = f"no samples of GPUs: {error}"
                return
            with self._lock:
                for one in uses:
                    self._seen.setdefault(one.index, []).append(one)
            if self._closed.wait(self._period_seconds):
                return


def _together(index: int, uses: list[GpuUse]) -> DeviceUse:
    return DeviceUse(
        index=index,
        samples=len(uses),
        busy_share=_over(fmean, [one.busy_share for one in uses]),
        memory_bytes=_over(max, [one.memory_bytes for one in uses]),
        watts=_over(fmean, [one.watts for one in uses]),
        celsius=_over(max, [one.celsius for one in uses]),
        clock_hz=_over(fmean, [one.clock_hz for one in uses]),
    )


def _over(combine: Callable[[list[float]], float], values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return combine(known) if known else None
