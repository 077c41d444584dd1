"""Which calls of a model are steps by themselves: those of a script that trains nothing.

Eight calls without a training show that the script infers. Fewer do where they compute for long,
since eight may then not come in time; and one does where a run before has shown it.
"""

from __future__ import annotations

from time import perf_counter

CALLS = 8
"""So many calls of the model, and nothing trained meanwhile: it infers."""
SLOW = ((1, 30.0), (2, 10.0))
"""So many calls that have computed for so many seconds together."""


class CallEnds:
    """Told of every call of a model, until one has shown that calls are the steps."""

    def __init__(self, *, assumed: bool = False, few: bool = False) -> None:
        self.assumed = assumed
        """Calls are steps although the script makes an optimizer."""
        self.few = few
        """They are from the first on."""
        self.seen = 0
        """Calls that have ended."""
        self._seconds = 0.0
        self._began = 0.0

    def begins(self) -> None:
        """A model is about to be called."""
        self._began = perf_counter()

    def ends(self, *, builds_a_graph: bool) -> None:
        """It has returned; a backward may be to come, however long it is in coming."""
        self.seen += 1
        if not builds_a_graph:
            self._seconds += perf_counter() - self._began

    def forget(self) -> None:
        """Begin anew, in a forked process."""
        self.seen, self._seconds = 0, 0.0

    def are_near(self) -> bool:
        """Will the calls be the steps, as far as it looks, so that what applies to steps may?"""
        return self.seen >= self._wanted() // 2

    def show_inference(self) -> bool:
        """Were there enough of them?"""
        return self.seen >= self._wanted()

    def are_few(self) -> bool:
        """Did fewer than eight show it, so that the latest has to count already?"""
        return self._wanted() < CALLS

    def _wanted(self) -> int:
        if self.few:
            return 1
        return next((calls for calls, seconds in SLOW if self._seconds >= seconds), CALLS)
