"""Which optimizers are inside their step: frameworks call one from within another's."""

from __future__ import annotations

import torch

from ridgeline.measure.child.clock import PhaseClock


class NestedSteps:
    """Optimizers inside their step, outermost first, each with the clock's depth before it."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._inside: list[tuple[torch.optim.Optimizer, int]] = []

    def enter(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that an optimizer steps. Whether it is the outermost one.

        One that steps again while inside its step had raised, and was caught.
        """
        for index, (inside, depth) in enumerate(self._inside):
            if inside is optimizer:
                del self._inside[index:]
                self._clock.leave_to(depth)
                break
        self._inside.append((optimizer, self._clock.depth))
        return len(self._inside) == 1

    def leave(self) -> bool:
        """Note that the innermost one has stepped. Whether none is inside its step any more.

        The clock is then as it was before the outermost one. False also where none had entered.
        """
        if not self._inside:
            return False
        _, depth = self._inside.pop()
        if self._inside:
            return False
        self._clock.leave_to(depth)
        return True
