"""The loss or its gradients are NaN or infinite: the run computes, but learns nothing."""

from __future__ import annotations

import math

from ridgeline.diagnose.reading import Reading, warning
from ridgeline.records import Finding

CAUSES = ("non-finite",)

_NORMAL_WITH_SCALER = 0.34
"""A loss scaler tries scales until gradients overflow: so many of the steps may."""


def find(reading: Reading) -> list[Finding]:
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
        confidence=1.0,
        summary=summary,
        evidence=evidence,
        where=[profile.settings.backward_site],
        cure="Lower the learning rate or clip the gradients, and look for a division, "
        "logarithm or overflow; until then nothing else about this run matters.",
        effort="line",
    )
