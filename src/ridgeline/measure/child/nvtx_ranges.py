"""NVTX ranges around the phases and the steps of a script that has none of its own.

Nsight Systems shows them above the kernels, and `ridgeline trace` reads them in its exports: phases
by their names, `step 12` as a turn of the loop. A phase is pushed and popped on the thread that
steps; steps are started and ended, since one may end while a phase is open. Torch without CUDA has
no NVTX: that is said once, and the script runs on without ranges.
"""

from __future__ import annotations

import torch

from ridgeline.measure.child.guard import tell


class NvtxRanges:
    """Told of each phase and each step; a listener of `PhaseClock`."""

    def __init__(self) -> None:
        self._missing = False
        self._step = 0
        self._open_step: int | None = None

    def entered(self, phase: str) -> None:
        """Told that a phase began."""
        if self._missing:
            return
        try:
            if self._open_step is None:
                self._open_step = torch.cuda.nvtx.range_start(f"step {self._step}")
            torch.cuda.nvtx.range_push(phase)
        except (RuntimeError, AttributeError):  # torch's stand-in, where there is no NVTX
            self._missing = True
            tell(f"--nvtx: torch {torch.__version__} is built without NVTX; no ranges are made")

    def left(self) -> None:
        """Told that the innermost phase ended."""
        if not self._missing:
            torch.cuda.nvtx.range_pop()

    def stepped(self) -> None:
        """Told that a step ended, and the next began."""
        if self._missing or self._open_step is None:
            return
        torch.cuda.nvtx.range_end(self._open_step)
        self._step += 1
        self._open_step = torch.cuda.nvtx.range_start(f"step {self._step}")
