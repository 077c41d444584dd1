"""Which line of the user's code is the host on? A thread looks at the stepping thread's stack.

Sampling needs no hook in the script, so it also explains time that no operator and no phase
accounts for: Python loops, tokenising, file access, printing. A thread that computes without
letting go of the interpreter lock delays the sampler, so each sample counts for the time since
the one before it.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter
from types import FrameType

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.guard import guarded
from ridgeline.measure.child.sites import is_user_file, line_of, shown
from ridgeline.records import HotLine, Site

_INTERVAL_SECONDS = 0.002


class Sampler:
    """Samples one thread until stopped."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._target = threading.get_ident()
        self._done = threading.Event()
        self._seen: defaultdict[tuple[str, int, str, str, str], float] = defaultdict(float)
        self._thread = threading.Thread(target=self._run, daemon=True, name="ridgeline-sampler")

    def start(self) -> None:
        """Begin sampling the calling thread."""
        self._thread.start()

    def follow(self) -> None:
        """Sample the calling thread from now on."""
        self._target = threading.get_ident()

    def stop(self) -> None:
        """Stop the sampling thread."""
        self._done.set()
        self._thread.join()

    def hot_lines(self, at_most: int = 40) -> list[HotLine]:
        """Lines by share of time, longest first."""
        total = sum(self._seen.values())
        longest = sorted(self._seen.items(), key=lambda item: -item[1])[:at_most]
        return [
            HotLine(
                site=Site(file=file, line=line, function=function),
                phase=phase,
                share=seconds / total,
                leaf=leaf,
            )
            for (file, line, function, phase, leaf), seconds in longest
        ]

    @guarded()
    def _run(self) -> None:
        before = perf_counter()
        while not self._done.wait(_INTERVAL_SECONDS):
            phase = self._agent.clock.phase
            stack = _stack(self._target)
            now = perf_counter()
            if stack is not None and not stack.module.startswith("ridgeline."):
                self._seen[_key(stack, phase)] += now - before
            before = now


@dataclass(frozen=True, slots=True)
class _Stack:
    """A thread's stack in plain values, innermost frame first."""

    module: str
    lines: list[tuple[str, int, str]]
    """File, line and function of each frame."""


def _stack(thread: int) -> _Stack | None:
    """Copy the stack and let go of its frames at once.

    A frame that outlives its call frees its locals on this thread. A tensor freed here while
    the other thread makes views of it breaks that thread; so nothing is called in between.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    if frame is None:
        return None
    module = str(frame.f_globals.get("__name__", ""))
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append((code.co_filename, line_of(frame), code.co_qualname))
        frame = frame.f_back
    return _Stack(module, lines)


def _key(stack: _Stack, phase: str) -> tuple[str, int, str, str, str]:
    name = f"{stack.module}.{stack.lines[0][2]}"
    for file, line, function in stack.lines:
        if is_user_file(file):
            return shown(file), line, function, phase, name
    return "", 0, "", phase, name
