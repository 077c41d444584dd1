"""The loss itself is wrong: it is not finite, or it jumps at the edges of epochs.

Where the loss or its gradients are NaN or infinite, the run computes but learns nothing. Where the
loss jumps at edges of epochs, the order or the make-up of the data repeats: a jump counts against
the losses around it (median and median absolute deviation), and only if edges jump and the steps
between them do not.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.diagnose.reading import Reading, warning
from ridgeline.records import Finding

CAUSES = ("loss-spikes", "non-finite")

_LEAST_EDGES = 3
_JUMP = 6.0
"""Deviations from the median of its neighbours."""
_RARE_ELSEWHERE = 0.02
_WINDOW = 8
_SHORTEST_EPOCH = 8
_NORMAL_WITH_SCALER = 0.34
"""A loss scaler tries scales until gradients overflow: so many of the steps may."""


def find(reading: Reading) -> list[Finding]:
    """Find losses that are not finite, and losses that jump where epochs meet."""
    return [*_spikes(reading), *_non_finite(reading)]


def _spikes(reading: Reading) -> list[Finding]:
    """At least three edges were seen, and nearly all of them jump."""
    profile = reading.profile
    losses = [loss for loss in profile.losses if math.isfinite(loss)]
    epoch = _epoch_steps(reading)
    if epoch is None or len(losses) < (_LEAST_EDGES + 0.5) * epoch:
        return []
    jumps = np.array([_jump(losses, step) for step in range(len(losses))])
    at_edges = np.arange(len(losses)) % epoch == 0
    at_edges[0] = False
    share_at_edges = float(np.mean(jumps[at_edges] > _JUMP))
    elsewhere = float(np.mean(jumps[~at_edges] > _JUMP))
    if share_at_edges < 0.8 or elsewhere > _RARE_ELSEWHERE:
        return []
    return warning(
        "loss-spikes",
        confidence=0.5,
        summary=f"The loss jumps at {int(share_at_edges * at_edges.sum())} of "
        f"{int(at_edges.sum())} epoch edges, every {epoch} steps.",
        evidence={
            "num_edges": int(at_edges.sum()),
            "steps_per_epoch": epoch,
            "jumps_at_edges_share": share_at_edges,
            "jumps_elsewhere_share": elsewhere,
        },
        where=[profile.loaders[0].site],
        cure="Shuffle every epoch with a new order, drop or weigh the incomplete last batch, "
        "and keep state (learning rate, running statistics) across the edge.",
        effort="line",
    )


def _epoch_steps(reading: Reading) -> int | None:
    """Steps between edges; None when it is not known or is not a whole number."""
    loaders = [ld for ld in reading.profile.loaders if ld.num_batches]
    forwards = reading.profile.settings.forwards_per_step
    if len(loaders) != 1 or forwards < 1 or not loaders[0].num_batches:
        return None
    steps = loaders[0].num_batches / round(forwards)
    return int(steps) if steps == int(steps) and steps >= _SHORTEST_EPOCH else None


def _jump(losses: list[float], step: int) -> float:
    """How many deviations a loss stands above its neighbours on both sides."""
    around = losses[max(0, step - _WINDOW) : step] + losses[step + 1 : step + 1 + _WINDOW]
    median = float(np.median(around))
    spread = 1.4826 * float(np.median(np.abs(np.array(around) - median)))
    return (losses[step] - median) / max(spread, 1e-6 * abs(median), 1e-12)


def _non_finite(reading: Reading) -> list[Finding]:
    """Some loss is not finite; or gradients are not, and no loss scaler explains it."""
    profile = reading.profile
    losses = profile.losses
    bad = [step for step, loss in enumerate(losses) if not math.isfinite(loss)]
    bad_gradients = max(0, profile.non_finite - len(bad))
    if profile.settings.gradient_scaler:
        looked = len(profile.gradient_norms) + bad_gradients
        if bad_gradients <= _NORMAL_WITH_SCALER * looked:
            bad_gradients = 0
    if not bad and not bad_gradients:
        return []
    evidence: dict[str, float | int | str] = {
        "num_losses_seen": len(losses),
        "num_losses_not_finite": len(bad),
        "num_gradients_not_finite": bad_gradients,
    }
    if bad:
        evidence["first_bad_step"] = bad[0] + 1
        summary = f"The loss is not finite from step {bad[0] + 1} on."
        if len(bad) < len(losses) - bad[0]:
            summary = f"The loss was not finite in {len(bad)} of {len(losses)} steps."
    else:
        summary = f"Gradients were not finite in {bad_gradients} steps, though the loss was."
    return warning(
        "non-finite",
        # Samplers and solvers walk out of a density's support, and turn such a point down.
        confidence=1.0 if profile.optimizers else 0.5,
        summary=summary,
        evidence=evidence,
        where=[profile.settings.backward_site],
        cure="Lower the learning rate or clip the gradients, and look for a division, "
        "logarithm or overflow; until then nothing else about this run matters."
        if profile.optimizers
        else "No optimizer learns from it: where a sampler or a solver turns such a point down, "
        "leave it. Else look for a division, a logarithm or an overflow.",
        effort="line",
    )
