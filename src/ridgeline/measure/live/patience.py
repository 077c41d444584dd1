"""How long an answer of the script may take, and what is said of the wait meanwhile.

Until the first step the whole patience may pass: loading data, or compiling, takes what it takes.
A first step that is under way by then, and the one after it, are worth half as much again; any
other wait ends not long after all of the patience is over. A server that nobody asks anything
computes nothing: a quarter of the patience tells that no request comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ridgeline.errors import ScriptError
from ridgeline.measure.wire import STANDING_NAME, Standpoint

_WORD_SECONDS = 5.0
"""A script that is waited for is heard of so often."""
_LATE_SHARE = 0.5
"""Share of the patience that is added for a step without which there is nothing to tell."""
_UNASKED_SHARE, _LEAST_UNASKED_SECONDS = 0.25, 20.0
"""Share of the patience for a script that listens and has computed nothing since; at least so long,
for whoever sends the requests has to be told first."""

_STEP = "a step is a call of an nn.Module, one of an optimizer, or a gradient; functions make none"


class OutOfPatience(ScriptError):
    """The script is alive, but the time for it is over."""


class Patience:
    """The limits of one run's answers.

    Args:
        command: The user's words, for messages.
        folder: The session's folder, where the script tells where it stands.
        seconds: How long an answer may take; None: for ever.
        on_progress: Hears every few seconds that the script is still at it, and where.
    """

    def __init__(
        self,
        command: list[str],
        folder: Path,
        *,
        seconds: float | None,
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self._command = " ".join(command)
        self._folder = folder
        self._seconds = seconds
        self._on_progress = on_progress
        self._is_exact = False
        """The limit is that of each answer, and not that of the whole run."""
        self._started = 0.0
        self._waiting_since = 0.0
        self._spoke = 0.0

    def start(self) -> None:
        """The script was started: its time runs."""
        self._started = time.monotonic()

    def begin_wait(self) -> None:
        """From now on an answer is waited for; where the script stood before is no matter."""
        (self._folder / STANDING_NAME).unlink(missing_ok=True)
        self._waiting_since = self._spoke = time.monotonic()

    def give_each(self, seconds: float | None) -> None:
        """Give each answer from now on so long, and no more; None: for ever."""
        self._seconds = seconds
        self._is_exact = True

    @property
    def run_seconds(self) -> float:
        """Seconds since the script was started."""
        return time.monotonic() - self._started

    def check(self, when: str, *, stepped: bool, timed: bool) -> None:
        """Say that the wait goes on.

        Args:
            when: In which part of the run, in words.
            stepped: Has the script reached its first step?
            timed: Was any step timed?

        Raises:
            OutOfPatience: It has gone on for too long.
        """
        now = time.monotonic()
        waited = now - self._waiting_since
        if not stepped and self._is_unasked():
            raise OutOfPatience(
                f"`{self._command}` has computed nothing for {waited:.0f} s{self._place()};"
                f" {self._requests()} (--budget gives you more time for it)"
            )
        if self._seconds is not None and waited > self._limit(stepped=stepped, timed=timed):
            if not stepped and self._computes_first_step():
                smaller = "less to evaluate" if self._evaluates() else "a smaller batch"
                raise OutOfPatience(
                    f"`{self._command}` has not ended its first step after {waited:.0f} s"
                    f"{self._place()}; give it more time with --budget, or {smaller}"
                )
            cure = "give it more time with --budget, or less to do before it trains"
            if not stepped and self._called_nothing():
                cure = f"no model was called by then ({_STEP}); {cure}"
            raise OutOfPatience(
                f"`{self._command}` did not answer for {waited:.0f} s {when}"
                f"{self._place()}; {self._requests() or cure}"
            )
        if self._on_progress is not None and now - self._spoke >= _WORD_SECONDS:
            self._spoke = now
            if stepped:
                self._on_progress(f"in a step for {waited:.0f} s{self._place()}")
            else:
                computes = self._computes_first_step()
                doing = "in the first step" if computes else "no step yet"
                requests = f"; {self._requests()}" if self._requests() else ""
                place = self._place() + requests
                self._on_progress(f"{doing} after {self.run_seconds:.0f} s{place}")

    def _limit(self, *, stepped: bool, timed: bool) -> float:
        assert self._seconds is not None
        if self._is_exact:
            return self._seconds
        if not stepped:
            return (1 + _LATE_SHARE if self._has_begun() else 1) * self._seconds
        left = self._seconds - (self._waiting_since - self._started)
        # A first step that came late is worth the wait for one that can be timed.
        share = 0.1 if timed else _LATE_SHARE
        return max(0.0, left) + share * self._seconds

    def _has_begun(self) -> bool:
        """Is the first step under way, as far as the script tells?"""
        told = self._standpoint()
        return told is not None and told.has_begun

    def _computes_first_step(self) -> bool:
        """Is the first step under way, and not what is compiled for it?"""
        told = self._standpoint()
        return told is not None and told.has_begun and not told.compiles

    def _called_nothing(self) -> bool:
        """Has the script called no model so far, as far as it tells?"""
        told = self._standpoint()
        return told is not None and not (told.calls or told.has_begun or told.compiles)

    def _evaluates(self) -> bool:
        """Does a script that trains run forwards without gradients, as far as it tells?"""
        told = self._standpoint()
        return told is not None and told.evaluates

    def _is_unasked(self) -> bool:
        """Does the script listen for requests, and has none come that it would compute for?"""
        told = self._standpoint()
        if told is None or not told.listens or self._seconds is None or self._is_exact:
            return False
        return told.idle_seconds > max(_LEAST_UNASKED_SECONDS, _UNASKED_SHARE * self._seconds)

    def _requests(self) -> str:
        """What a script needs that waits for connections; empty: it does not."""
        told = self._standpoint()
        if told is None or not told.listens:
            return ""
        return f"it listens at {told.listens}: where it answers requests, send it some meanwhile"

    def _place(self) -> str:
        """Which line of the user's the script is on, where it tells."""
        told = self._standpoint()
        if told is None:
            return ""
        calls = f", and has called its model {told.calls} times" if told.calls > 1 else ""
        doing = "torch.compile is at work at" if told.compiles else "it is at"
        if told.evaluates:
            doing = "it evaluates or generates, without gradients, at"
        return f": {doing} {told.where}{calls}"

    def _standpoint(self) -> Standpoint | None:
        path = self._folder / STANDING_NAME
        return msgspec.json.decode(path.read_bytes(), type=Standpoint) if path.exists() else None
