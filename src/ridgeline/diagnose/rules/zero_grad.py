"""Gradients are filled with zeros and added to, where new ones could simply take their place."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent, total_seconds
from ridgeline.records import Finding

CAUSES = ("zero-grad-in-place",)

_ZEROING = frozenset(f"aten::{name}" for name in ("zero_", "_foreach_zero_", "fill_"))
_ADDING = frozenset(("aten::add_",))


def find(reading: Reading) -> list[Finding]:
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
