"""The machine that holds the rendezvous of a run, as another machine of the run sees it."""

from __future__ import annotations

from time import monotonic, sleep

from ridgeline.train.nodes import Nodes

_ASK_SECONDS = 3.0
_MISSES = 3
_RETURN_SECONDS = 600.0
"""For so long a machine that lost the others tries to join them again."""


class LeadingMachine:
    """The machine that holds the rendezvous, as another one sees it."""

    def __init__(self, nodes: Nodes | None) -> None:
        """Look at the leading machine; None: it is this one."""
        self._nodes = nodes
        self._asked = monotonic()
        self._misses = 0
        self._met = False
        self.lost = False
        """It has not answered several times in a row."""

    def look(self) -> bool:
        """Whether it is lost; asks now and then."""
        if self._nodes is None or monotonic() - self._asked < _ASK_SECONDS:
            return self.lost
        self._misses = 0 if self._nodes.reachable() else self._misses + 1
        self._asked = monotonic()
        # Before the first answer torchrun waits for it, not we.
        self.lost = self._misses >= _MISSES and self._met
        self._met = self._met or not self._misses
        return self.lost

    def came_back(self) -> bool:
        """Wait for it; False: it stayed away."""
        assert self._nodes is not None
        deadline = monotonic() + _RETURN_SECONDS
        while monotonic() < deadline:
            if self._nodes.reachable():
                self.lost, self._misses, self._asked = False, 0, monotonic()
                return True
            sleep(1.0)
        return False
