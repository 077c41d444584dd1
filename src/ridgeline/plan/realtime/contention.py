"""Calls that run at one time on fewer cores than they need.

Calls that need a core share the cores that there are, evenly (processor sharing): with `demand`
cores wanted on `cores`, one that wants a core all the time runs at `min(1, cores / demand)` of its
speed. A call that needs a core for a share r of its time is slowed in that share alone: at core
speed s, it runs at 1 / (r / s + 1 - r).

The same law takes contention out of what was measured (`run_samples.py`) and puts it into what is
simulated, so a run that is simulated as it was comes out as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_DONE_SECONDS = 1e-12
"""What rounding leaves of a call that is over."""


def core_speed(demand: float, cores: int | None) -> float:
    """Share of its speed at which code runs while so many cores are wanted.

    >>> core_speed(1.0, 2), core_speed(3.0, 2), core_speed(4.0, None)
    (1.0, 0.6666666666666666, 1.0)
    """
    return 1.0 if cores is None or demand <= cores else cores / demand


def call_speed(core_share: float, core: float) -> float:
    """Share of its speed at which a call runs that needs a core for a share of its time.

    >>> call_speed(1.0, 0.5), call_speed(0.0, 0.5), call_speed(0.5, 0.5)
    (0.5, 1.0, 0.6666666666666666)
    """
    return 1.0 / (core_share / core + 1.0 - core_share)


@dataclass(slots=True)
class SharedCores:
    """The calls that run now, and when the next one ends."""

    cores: int | None
    now: float = 0.0
    _left: dict[int, float] = field(default_factory=dict)
    """Call → seconds that it would still take on a core of its own."""
    _shares: dict[int, float] = field(default_factory=dict)
    _speeds: dict[int, float] = field(default_factory=dict)

    def add(self, call: int, seconds: float, core_share: float) -> None:
        """A call begins now."""
        self._left[call] = seconds
        self._shares[call] = core_share
        self._share_out()

    def next_end(self) -> tuple[float, int] | None:
        """When the first of them ends, and which; None: nothing runs."""
        if not self._left:
            return None
        call = min(self._left, key=lambda one: self._left[one] / self._speeds[one])
        return self.now + max(0.0, self._left[call]) / self._speeds[call], call

    def advance(self, now: float) -> None:
        """Time passes, in which no call begins or ends."""
        passed = now - self.now
        if passed > 0.0:
            for call, speed in self._speeds.items():
                self._left[call] -= passed * speed
        self.now = now

    def remove(self, call: int) -> None:
        """A call ends now."""
        left = self._left.pop(call)
        assert left < _DONE_SECONDS * max(1.0, self.now) + 1e-9, left
        del self._shares[call], self._speeds[call]
        self._share_out()

    def _share_out(self) -> None:
        core = core_speed(sum(self._shares.values()), self.cores)
        self._speeds = {call: call_speed(share, core) for call, share in self._shares.items()}
