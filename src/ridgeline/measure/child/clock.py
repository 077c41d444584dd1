"""Exclusive time per phase: a stack of phases, a list of marks, resolved at the end of a block.

A mark says "from here on, this phase". Phases nest (an optimizer's closure runs forward and
backward): the innermost one owns the time. On CUDA a mark is an event on the current stream,
so the phases are those of the device and marking does not synchronise.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Protocol

BOUNDARY = "boundary"
BEGIN = "begin"
OTHER = "other"


class PhaseListener(Protocol):
    """Whatever is told of phases and steps."""

    def entered(self, phase: str) -> None:
        """Told that a phase began."""

    def left(self) -> None:
        """Told that the innermost phase ended."""

    def stepped(self) -> None:
        """Told that a step ended, and the next began."""


class PhaseClock:
    """Marks phases while the script runs; `resolve` turns the marks into steps."""

    def __init__(self, *, recording: bool = True) -> None:
        self.cuda = False
        self.recording = recording
        """False: phases nest, nothing is remembered (a run that nobody measures)."""
        self._marks: list[tuple[str, Any]] = []
        self._stack: list[str] = []
        self._open_at_restart = OTHER
        self.listener: PhaseListener | None = None
        """Told of every phase and step as it comes, for who shows them elsewhere."""

    @property
    def phase(self) -> str:
        """The innermost open phase."""
        return self._stack[-1] if self._stack else OTHER

    def is_inside(self, phase: str) -> bool:
        """Is `phase` open at any depth?"""
        return phase in self._stack

    def enter(self, phase: str) -> None:
        """Open `phase` on top of the ones that are open."""
        self._stack.append(phase)
        self._mark(phase)
        if self.listener is not None:
            self.listener.entered(phase)

    def leave(self) -> None:
        """Close the innermost phase; the one below goes on."""
        if self._stack:
            self._stack.pop()
            if self.listener is not None:
                self.listener.left()
        self._mark(self.phase)

    def leave_to(self, depth: int) -> None:
        """Close phases down to `depth` open ones (after an exception unwound some)."""
        while len(self._stack) > depth:
            self.leave()

    @property
    def depth(self) -> int:
        """Number of open phases."""
        return len(self._stack)

    def boundary(self) -> None:
        """A step ended here; the open phase goes on into the next one."""
        self._mark(BOUNDARY)
        if self.listener is not None:
            self.listener.stepped()

    def begin_late(self) -> None:
        """The step under way begins only now: what went before is of no step."""
        self._mark(BEGIN)

    def restart(self) -> None:
        """Forget what was marked; the next step begins now."""
        self._marks = [(BOUNDARY, self._now())]
        self._open_at_restart = self.phase

    def resolve(self) -> list[dict[str, float]]:
        """Seconds per phase for every whole step marked since `restart`, and forget them."""
        marks, self._marks = self._marks, []
        if not marks:
            return []
        if self.cuda:
            marks[-1][1].synchronize()
        steps: list[dict[str, float]] = []
        current: dict[str, float] = {}
        phase = self._open_at_restart
        before = marks[0][1]
        for name, moment in marks[1:]:
            current[phase] = current.get(phase, 0.0) + self._seconds(before, moment)
            before = moment
            if name == BOUNDARY:
                steps.append(current)
                current = {}
            elif name == BEGIN:
                current = {}
            else:
                phase = name
        return steps

    def _mark(self, name: str) -> None:
        if self.recording:
            self._marks.append((name, self._now()))

    def _now(self) -> Any:
        if not self.cuda:
            return perf_counter_ns()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, before: Any, after: Any) -> float:
        if not self.cuda:
            return float(after - before) * 1e-9
        return float(before.elapsed_time(after)) * 1e-3
