"""Which schemes image models take, in which order, and what each needs to be given."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.compress.images.material import ImageMaterial
from ridgeline.errors import InputError
from ridgeline.records.scheme import Scheme


def check_schemes(material: ImageMaterial, schemes: Sequence[Scheme]) -> None:
    """Refuse schemes before anything is loaded.

    Raises:
        InputError: One is not for image models, comes too early, or lacks what it looks at.
    """
    if material.out.exists():
        raise InputError(f"--out {material.out}: exists already; give another name or remove it")
    for place, one in enumerate(schemes):
        if one.images:
            if place != len(schemes) - 1:
                raise InputError(
                    f"scheme {one.name!r} rounds, so that nothing can follow it; give it last"
                )
        elif one.pruning is None or one.pruning.structure != "channels":
            raise InputError(
                f"scheme {one.name!r} is not for image models; give w8a8-int8, or one that prunes"
                " channels, such as 50%-channels or 30%-channels-taylor-global"
            )
        elif one.pruning.criterion not in ("magnitude", "taylor"):
            raise InputError(
                f"scheme {one.name!r}: {one.pruning.criterion} ranks single weights, not channels;"
                " choose magnitude or taylor"
            )
        if one.needs_calibration and material.calibration is None:
            what = "flows through" if one.images else "loss of images"
            raise InputError(f"{one.name} looks at what {what}: give --calibration PATH")
    if material.faster is not None and not material.latency:
        raise InputError("--faster says how much --for latency shall gain; give both")
    if material.latency and not any(one.pruning for one in schemes):
        raise InputError("--for latency prunes channels: give --scheme 50%-channels")
