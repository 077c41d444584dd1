"""Inference records what a backward would need, and no backward comes."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, percent
from ridgeline.records import Finding

CAUSES = ("gradients-in-inference",)

_SAVES = (0.01, 0.1)
"""Shares of the forward: the note per operator, and the memory that is kept from being reused."""


def find(reading: Reading) -> list[Finding]:
    """Forwards of an inference script ran with gradients enabled."""
    profile = reading.profile
    if profile.kind != "inference" or not profile.settings.records_gradients:
        return []
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
