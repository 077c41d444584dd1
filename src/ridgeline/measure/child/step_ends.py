"""Which event ends a training step.

A step ends when the anchor optimizer has stepped; with alternating optimizers (a GAN) the anchor
is the one that steps least often, so a step is a whole cycle. A script that makes its optimizer
anew for each client, fold or task goes on with the next one. What an earlier run of the script took
for the anchor is taken from the start, so that all runs count alike. A script that constructs no
optimizer, or whose optimizer is not seen to step, steps at the end of each backward. One that has
none of these steps with each gradient that it asks for: of whatever it likes where it calls no
model (a sampler, a relaxation of atoms), of the model's weights where it does (`torch.func.grad`
and an update by hand).
"""

from __future__ import annotations

from time import perf_counter

import torch

from ridgeline.measure.child.clock import PhaseClock
from ridgeline.measure.child.guard import tell
from ridgeline.measure.child.watched import OptimizerWatch, Watched

PATIENT_BACKWARDS = 64
PATIENT_SECONDS = 10.0
"""So many backwards, or a few over so long, without a step of an optimizer that was made.

Few backwards are believed only inside of one optimizer's step, or where weights moved between
them: a script that accumulates slow micro-batches has not stepped yet, and will.
"""
PATIENT_GRADIENTS = 8
"""So many gradients by themselves, and they are what the script is about."""
_GONE_AFTER = 64
"""An anchor that has not stepped while another stepped so often has stopped."""


class StepEnds:
    """Told of every backward and every step of an optimizer; says which of them end a step."""

    def __init__(self, watched: Watched, clock: PhaseClock) -> None:
        self._watched = watched
        self._clock = clock
        self._backwards_end = False
        """Steps end with backwards, for the optimizer's own are not seen."""
        self._closure = False
        """They do because one step of the optimizer takes too long to be waited for."""
        self._gradients = 0
        self._ran_backward = False
        self._unstepped = 0
        self._unstepped_since = 0.0
        self._weights: float | None = None
        """The main model's weights in one number, after the latest backward."""
        self._moved = False
        """Another one than after the backward before: something stepped, and was not seen."""

    def by_backward(self) -> bool:
        """A backward has run: does a step end with it?"""
        self._ran_backward = True
        return not self._watched.optimizers_made or self._never_steps()

    @property
    def backwards_before_a_step(self) -> int:
        """How many backwards have run in a script whose optimizer has not stepped yet."""
        return self._unstepped if self._watched.anchor is None and not self._backwards_end else 0

    @property
    def backwards_end(self) -> bool:
        """Does each backward end a step, since the optimizer's was too long in coming?"""
        return self._backwards_end

    def let_backwards_end(self) -> None:
        """Wait no longer for the optimizer: each backward ends a step from now on."""
        self._backwards_end = self._closure = True

    def by_gradient(self) -> bool:
        """A gradient was asked for that may be a step by itself: does a step end with it?"""
        if self._watched.optimizers_made or self._ran_backward:
            return False
        self._gradients += 1
        self._watched.switches.backwards += 1
        return self._gradients >= PATIENT_GRADIENTS

    def by_optimizer(self, optimizer: torch.optim.Optimizer) -> bool:
        """An optimizer has stepped: does a step end with it?"""
        watch = self._watched.optimizer(optimizer)
        watch.steps += 1
        watch.stepped = perf_counter()
        if self._closure:
            return False
        if self._backwards_end and self._watched.look_closer:
            return False  # a compiled step that runs eagerly while operators are looked at
        anchor = self._watched.anchor or self._take_first_anchor(watch)
        if watch is not anchor:
            if self._succeeds(watch, anchor):
                watch.steps += anchor.steps
                anchor = watch
            elif self._is_better_anchor(watch, anchor):
                anchor = watch
        self._watched.anchor = anchor
        return watch is anchor

    def _take_first_anchor(self, watch: OptimizerWatch) -> OptimizerWatch:
        """Take the anchor of an earlier run, which settles it, or else what steps first."""
        made, place = list(self._watched.optimizers.values()), self._watched.chosen_optimizer
        if place is None or place >= len(made):
            return watch
        self._watched.anchored = True
        return made[place]

    def _never_steps(self) -> bool:
        """Have so many backwards gone by without a step that one is not to be expected?

        Neither soon: one step of L-BFGS may call its closure fifty thousand times.
        """
        if self._watched.anchor is not None:
            return False
        self._unstepped += 1
        if self._unstepped == 1:
            self._unstepped_since = perf_counter()
        inside = self._clock.is_inside("optimizer")
        if not (inside or self._moved):
            before, self._weights = self._weights, self._watched.main.weights_in_a_number()
            self._moved = before is not None and before != self._weights
        many = self._unstepped >= PATIENT_BACKWARDS and not inside
        long = self._unstepped >= 3 and perf_counter() - self._unstepped_since >= PATIENT_SECONDS
        long = long and (inside or self._moved)
        if not (self._backwards_end or many or long):
            return False
        if not self._backwards_end:
            self._backwards_end, self._closure = True, inside
            seen = (
                "one step of the script's optimizer evaluates its closure for long"
                if inside
                else "no step of the script's optimizer was seen"
            )
            tell(f"{seen}: a step is taken to end with each backward")
        return True

    def _succeeds(self, watch: OptimizerWatch, anchor: OptimizerWatch) -> bool:
        """Was it made on the anchor's line, after the anchor had done its last step?"""
        return anchor.site is not None and watch.site == anchor.site and watch.made > anchor.stepped

    def _is_better_anchor(self, watch: OptimizerWatch, anchor: OptimizerWatch) -> bool:
        """Should another optimizer that steps be the anchor?

        When it steps clearly less often, or when the anchor is gone or has stopped stepping.
        """
        watch.since_anchor += 1
        if watch.since_anchor > _GONE_AFTER or anchor.optimizer() is None:
            return True
        rarer = watch.steps >= 2 and anchor.steps >= 1.5 * watch.steps
        return rarer and not self._watched.anchored
