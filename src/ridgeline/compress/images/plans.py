"""The plan of a quantised vision model: its layers as a record, and the mixture in words."""

from __future__ import annotations

import math

from ridgeline.compress.vision.mixed import MixedVision
from ridgeline.compress.vision.quantise import QuantisedVision
from ridgeline.records.image_compression import PlannedLayer


def planned(found: QuantisedVision, alone: dict[str, float | None]) -> tuple[PlannedLayer, ...]:
    """The plan of a quantised model as a record."""
    return tuple(
        PlannedLayer(
            layer=one.layer,
            kind=one.kind,
            macs=one.macs,
            weight_bits=one.weight_bits,
            activation_bits=one.activation_bits,
            why=one.why,
            sqnr_db=alone.get(one.layer),
        )
        for one in found.plan
    )


def finite_or_none(value: float) -> float | None:
    """A number that JSON has; None for infinity."""
    return value if math.isfinite(value) else None


def mixture(found: MixedVision) -> str:
    """What went back to float, and what it won."""
    names = ", ".join(found.in_float) or "no layer"
    equalised = "; equalised" if found.equalised else ""
    return (
        f"in float: {names} ({found.float_share:.1%} of the MACs), SQNR on calibration"
        f" {found.before_db:.1f} → {found.after_db:.1f} dB{equalised}"
    )
