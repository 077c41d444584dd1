"""Other fleets by what is changed of one: `tp=2`, `replicas=2,router=round-robin`, `scale_on=kv`.

Keys are the fields of `Deployment`, and those of `Scaling` with `scale_` before them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ridgeline.batching.scaling.settings import Scaling
from ridgeline.errors import InputError
from ridgeline.plan.simulate.deployment import Deployment

PREFIX = "scale_"


def changed_by(
    deployment: Deployment, scaling: Scaling | None, change: str
) -> tuple[Deployment, Scaling | None]:
    """The deployment and its scaling with `key=value,…` changed.

    Raises:
        InputError: A key or a value that is none.

    >>> changed_by(Deployment(gpu="H100"), None, "tp=2,prefix_cache=false")[0].tp
    2
    >>> changed_by(Deployment(gpu="H100"), None, "scale_maximum=3")[1].maximum
    3
    """
    fields: dict[str, Any] = msgspec.structs.asdict(deployment)
    scaled: dict[str, Any] = {} if scaling is None else msgspec.structs.asdict(scaling)
    known = [*fields, *(PREFIX + name for name in Scaling.__struct_fields__)]
    for part in change.split(","):
        key, sign, value = (word.strip() for word in part.partition("="))
        key = key.replace("-", "_")
        if not sign or key not in known:
            raise InputError(
                f"--what-if {change}: {key or part!r} is nothing that can be changed; give"
                f" KEY=VALUE with one of {', '.join(known)}"
            )
        if key in fields:
            fields[key] = value
        else:
            scaled[key.removeprefix(PREFIX)] = value
    try:
        found = msgspec.convert(fields, Deployment, strict=False)
        if not scaled:
            return found, None
        scaled.setdefault("minimum", found.replicas)
        return found, msgspec.convert(scaled, Scaling, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"--what-if {change}: {error}") from None
