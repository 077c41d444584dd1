"""Gradients and graphs that cost more than they must: filled with zeros, kept, recorded for nobody.

Zeros: gradients are filled and added to, where new ones could simply take their place. Kept graphs:
activations stay alive, and may be walked through again; a graph is needed only when another
backward goes through it, and the last one of a step has nobody to keep it for. Whether old graphs
are really walked again shows in the work: backward takes twice the matmuls of forward, and more
only if it repeats some. Records: inference notes what a backward would need, and none comes.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import (
    DENSE_MATMULS,
    Evidence,
    Reading,
    duration,
    megabytes,
    percent,
    total_seconds,
    warning,
)
from ridgeline.records import Finding
from ridgeline.records.matmuls import MATMULS

CAUSES = ("zero-grad-in-place", "retained-graph", "gradients-in-inference")

_ZEROING = frozenset(f"aten::{name}" for name in ("zero_", "_foreach_zero_", "fill_"))
_ADDING = frozenset(("aten::add_",))
_BACKWARD_OVER_FORWARD = 2.0
_CLEARLY_MORE = 1.3
_SAVES = (0.01, 0.1)
"""Shares of the forward: the note per operator, and the memory that is kept from being reused."""


def find(reading: Reading) -> list[Finding]:
    """Find gradients zeroed in place, graphs that every backward keeps, and needless records."""
    return [*_zeros(reading), *_kept_graphs(reading), *_recorded(reading)]


def _zeros(reading: Reading) -> list[Finding]:
    """The filling, and the additions of backward that then read the zeros."""
    optimizers = [o for o in reading.profile.optimizers if o.zeroes_in_place]
    if not optimizers:
        return []
    zeroing = total_seconds(reading.operators(_ZEROING, phases=("other",)))
    adding = 0.0
    if reading.profile.settings.backwards_per_step <= len(reading.profile.optimizers):
        adding = total_seconds(reading.operators(_ADDING, phases=("backward",)))
    return reading.finding(
        "zero-grad-in-place",
        touched_seconds=zeroing + adding,
        saves_seconds=(0.8 * zeroing + 0.3 * adding, zeroing + adding),
        confidence=0.9,
        summary=f"Gradients are zeroed in place: {duration(zeroing)} to fill them and "
        f"{duration(adding)} to add to the zeros, "
        f"{percent(reading.share(zeroing + adding))} of the step.",
        evidence={
            "zeroing_seconds": zeroing,
            "adding_seconds": adding,
            "gradients_bytes": reading.profile.memory.gradients_bytes,
        },
        where=[o.step_site for o in optimizers],
        cure="Call `zero_grad()` without `set_to_none=False`.",
        effort="flag",
        technique="set-to-none",
    )


def _kept_graphs(reading: Reading) -> list[Finding]:
    """No backward of the step lets go of its graph."""
    profile = reading.profile
    settings = profile.settings
    backwards = settings.backwards_per_step
    if backwards <= 0 or profile.habit("retain_graph").calls < 0.99 * backwards:
        return []
    again = _walked_again_share(reading)
    saved = again * reading.phase_seconds("backward")
    growth = max(0.0, profile.memory_growth_bytes_per_step)
    summary = "Every backward keeps its graph"
    if again:
        summary += f", and {percent(again)} of backward goes through graphs of earlier steps"
    elif growth > 0:
        summary += f", and memory grows by {megabytes(growth)} per step"
    evidence: Evidence = {
        "retained_per_step": profile.habit("retain_graph").calls,
        "backwards_per_step": backwards,
        "walked_again_share": again,
        "growth_bytes": int(growth),
        "activations_bytes": profile.memory.activations_bytes,
    }
    cure = (
        "Call `backward()` without `retain_graph=True`; detach what is carried from one step to "
        "the next (hidden states, running losses)."
    )
    where = [profile.habit("retain_graph").site]
    if saved <= 0:
        return warning(
            "retained-graph",
            confidence=0.9 if growth else 0.3,
            summary=summary + ".",
            evidence=evidence,
            cure=cure,
            effort="line",
            where=where,
        )
    return reading.finding(
        "retained-graph",
        touched_seconds=reading.phase_seconds("backward"),
        saves_seconds=(0.7 * saved, saved),
        confidence=0.9,
        summary=summary + ".",
        evidence=evidence,
        cure=cure,
        effort="line",
        where=where,
    )


def _walked_again_share(reading: Reading) -> float:
    """Part of backward's arithmetic beyond what one pass through one graph takes.

    Where gradients are asked for besides (a penalty, forces, a Hessian), the pass through those
    is more arithmetic too, and all of it is wanted.
    """
    if reading.profile.habit("gradient").calls:
        return 0.0
    names = MATMULS if reading.profile.habit("recompute").seconds == 0 else DENSE_MATMULS
    forward = sum(op.flops for op in reading.operators(names, phases=("forward", "other")))
    backward = sum(op.flops for op in reading.operators(names, phases=("backward",)))
    if not forward or backward <= _CLEARLY_MORE * _BACKWARD_OVER_FORWARD * forward:
        return 0.0
    return 1 - _BACKWARD_OVER_FORWARD * forward / backward


def _recorded(reading: Reading) -> list[Finding]:
    """Forwards of an inference script ran with gradients enabled, and nothing asked for any."""
    profile = reading.profile
    if profile.kind != "inference" or not profile.settings.records_gradients:
        return []
    if reading.phase_seconds("backward"):
        return []  # an explanation, an attack, guidance: it needs them
    forward = profile.phases["forward"].mean if "forward" in profile.phases else 0.0
    most = _SAVES[1] + 0.2 * profile.small_operator_share
    return reading.finding(
        "gradients-in-inference",
        touched_seconds=forward,
        saves_seconds=(_SAVES[0] * forward, most * forward),
        confidence=0.9,
        summary="Gradients are recorded although nothing runs backward: every operator notes what"
        f" it would need, in {percent(reading.share(forward))} of the step, and activations stay"
        " in memory.",
        evidence={
            "forward_seconds": forward,
            "activations_bytes": profile.memory.activations_bytes,
        },
        where=[model.forward_site for model in profile.models],
        cure="Run the model under `torch.inference_mode()`.",
        effort="line",
        technique="inference-mode",
    )
