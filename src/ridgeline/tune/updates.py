"""Does a changed run step by the same gradients, of the same parameters, under the same settings?

Beside the losses (`losses.py`), which tell a wrong update late or not at all: an optimizer that
divides by the gradient's size trains on as before when gradients are clipped, kept from the step
before, or missing for a layer. How far rounding moves the norm of the gradients is what it does in
the disturbed run, step for step in stretches as with losses, and no less than a floor: noise that
points nowhere hardly changes a norm, and rounding to fewer bits may. Settings of optimizers
(learning rate, weight decay, …) are no result of rounding: they are the same or they are wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.measure.wire import Updates

WEIGHED_STEPS = 12
"""Steps whose gradients are weighed: those that warm up, which are not timed."""
TIMES_SHAKEN = 6.0
"""How often further than in the disturbed run the norm of the gradients may part.

Of bfloat16 autocast in four small trainings under eight seeds none passed 1.6; clipping that was
added, and gradients that were kept, passed 8 where the losses let them pass.
"""
FLOORS: Mapping[str, float] = MappingProxyType({"rounding": 1e-3, "reduced-precision": 1e-2})
"""Equivalence → relative difference of the norm that rounding may make in any script."""
_STRETCHES = (0, 3, 8)
TIMES_SEEDS = 4.0
_SEED_FLOOR = 0.15
"""How often further than under other seeds the mean logarithm of the norms may part, and the least
that seeds are taken to do to it: batches put together otherwise (by length) may do as much."""
_SAME_NORM, _LEAST_CLIPPED = 1e-4, 3
"""So near to the largest norm, relative to it, lie the norms of clipped steps; and so many of them
are no chance, for gradients of different batches are hardly ever of the same length."""
_LEAST_NORM = 1e-30
_SAME_SETTING = 1e-7
"""Relative difference of a mean of settings that only rounds."""


def update_fault(
    equivalence: str,
    base: Updates,
    other: Updates,
    shaken: Updates | None,
    *,
    seeds: Sequence[Updates] = (),
) -> str | None:
    """What is wrong with the updates of a changed run; None: nothing that was seen.

    Args:
        equivalence: What the change may do; with `statistical`, other seeds are the measure.
        base: Updates of the incumbent.
        other: Updates of the changed run.
        shaken: Updates of the incumbent, disturbed by as much as rounding.
        seeds: Updates of the incumbent under other seeds.
    """
    reset = settings_fault(base, other, shaken)
    if reset is not None:
        return reset
    if equivalence == "statistical":
        return _fault_beside_seeds(base, other, seeds)
    if equivalence not in FLOORS:
        return None
    if other.short and base.short is False:
        return "the weights themselves are rounded to 16 bits; the baseline's are not"
    steps = min(len(base.norms), len(other.norms))
    counted = zip(base.tensors, other.tensors, strict=False)
    missing = next(((n, a, b) for n, (a, b) in enumerate(counted) if a != b), None)
    if missing is not None and len(set(base.tensors)) == 1 and _is_level(shaken, base.tensors[0]):
        step, was, now = missing
        return f"{now} parameters have a gradient in step {step}; in the baseline {was} have one"
    if shaken is None or not shaken.norms or not steps:
        return None
    moved = _parted(base.norms, shaken.norms)
    gap = _parted(base.norms, other.norms)
    reach = FLOORS[equivalence]
    for first, end in itertools.pairwise((*(at for at in _STRETCHES if at < steps), steps)):
        reach = max(reach, _rms(moved[first:end]))
        size = _rms(gap[first:end])
        if not size <= TIMES_SHAKEN * reach:
            return (
                f"gradients of steps {first} to {end - 1} part by {size:.2g} of their norm, "
                f"{size / reach:.0f} times what rounding does to this script ({reach:.2g})"
            )
    return None


def settings_fault(base: Updates, other: Updates, shaken: Updates | None) -> str | None:
    """Which setting of the optimizers differs, unless a disturbance moves it, too.

    It says so also where losses are equal, and where a script does not repeat itself.
    """
    disturbed = shaken.settings if shaken is not None else []
    begun = max(_whole_from(base), _whole_from(other))
    for step, (was, now) in enumerate(zip(base.settings, other.settings, strict=False)):
        if step < begun:
            continue
        moved = disturbed[step] if step < len(disturbed) else was
        for name in was.keys() & now.keys():
            same = math.isclose(was[name], now[name], rel_tol=_SAME_SETTING)
            if not same and math.isclose(was[name], moved.get(name, was[name]), rel_tol=1e-12):
                return f"`{name}` of the optimizer's step {step} is not the baseline's"
    return None


def _whole_from(updates: Updates) -> int:
    """From which step on do as many elements step as in the last two; none, where these differ?

    Where each parameter has an optimizer of its own, made when it is first stepped, a step ends
    with each of them at first; and which comes first may differ from run to run, for parameters
    stand in a set.
    """
    elements = [step.get("elements") for step in updates.settings]
    if len(elements) > 1 and elements[-2] != elements[-1]:
        return len(elements)
    return next((n for n in range(len(elements), 0, -1) if elements[n - 1] != elements[-1]), 0)


def _fault_beside_seeds(base: Updates, other: Updates, seeds: Sequence[Updates]) -> str | None:
    """Are there as many gradients, and as large on the whole, as other draws leave them?"""
    runs = [run for run in seeds if run.norms]
    if not runs or not base.norms or not other.norms:
        return None
    known = {count for run in (base, *runs) for count in run.tensors}
    if len(known) == 1 and known.isdisjoint(other.tensors):
        return f"{other.tensors[0]} parameters have a gradient; in the baseline {known.pop()} have"
    clipped = _clipping_fault((base, *runs), other)
    if clipped is not None:
        return clipped
    usual = _mean_log(base.norms)
    reach = max(_SEED_FLOOR, *(abs(_mean_log(run.norms) - usual) for run in runs))
    parted = _mean_log(other.norms) - usual
    if abs(parted) <= TIMES_SEEDS * reach:
        return None
    return (
        f"gradients are {math.exp(parted):.2g} times the baseline's on the whole; under other "
        f"seeds they are at most {math.exp(reach):.2g} times as large"
    )


def _clipping_fault(known: Sequence[Updates], other: Updates) -> str | None:
    """Are gradients clipped, in one of them only? The clipped ones are all equally long."""
    now, before = _ceiling(other.norms), [_ceiling(run.norms) for run in known]
    if now is not None and not any(before):
        return f"gradients are cut to a norm of {now:.3g}; in the baseline they are not"
    ceilings = [one for one in before if one is not None]
    if len(ceilings) < len(before) or max(other.norms) <= (1 + _SAME_NORM) * max(ceilings):
        return None
    return f"gradients are not cut to a norm of {max(ceilings):.3g}; in the baseline they are"


def _ceiling(norms: Sequence[float]) -> float | None:
    """The norm that several steps reach and none passes; None: there is none."""
    top = max(norms)
    at_top = sum(norm >= (1 - _SAME_NORM) * top for norm in norms)
    return top if at_top >= _LEAST_CLIPPED and top > _LEAST_NORM else None


def _mean_log(norms: Sequence[float]) -> float:
    return float(np.mean(np.log(np.maximum(norms, _LEAST_NORM))))


def _is_level(shaken: Updates | None, tensors: int) -> bool:
    """Does a disturbance change which parameters have a gradient? Then so may rounding."""
    return shaken is None or set(shaken.tensors) <= {tensors}


def _parted(base: list[float], other: list[float]) -> NDArray[np.float64]:
    steps = min(len(base), len(other))
    was, now = (np.maximum(np.array(norms[:steps]), _LEAST_NORM) for norms in (base, other))
    parted: NDArray[np.float64] = np.abs(np.log(now / was))
    return parted


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0
