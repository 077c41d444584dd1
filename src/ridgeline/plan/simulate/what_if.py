"""Another fleet beside the one that is asked about: `--what-if KEY=VALUE,…`.

Keys are the options without their dashes: `replicas=1:4,scale-target=0.5,scale-up-after=20`. The
fields of `Deployment` and, behind `scale_`, of `Scaling` are keys too, as a record writes them.
"""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import msgspec

from ridgeline.batching.scaling.settings import LIMITS, TARGETS, Scaling
from ridgeline.errors import InputError
from ridgeline.plan.simulate.deployment import Deployment

PREFIX = "scale_"
TARGET = "scale_target"
_UNIT = re.compile(r"_(seconds|gigabytes_per_second)$")
"""What names of fields have and options have not: `--link` is `link_gigabytes_per_second`."""
_BOUNDS = re.compile(r"(\d+):(\d+)")


def changed_by(
    deployment: Deployment, scaling: Scaling | None, change: str
) -> tuple[Deployment, Scaling | None]:
    """The deployment and its scaling with `key=value,…` changed.

    A number of replicas alone is a fleet that does not scale, as it is for the option.

    Raises:
        InputError: A key or a value that is none.

    >>> changed_by(Deployment(gpu="H100"), None, "tp=2,prefix_cache=false")[0].tp
    2
    >>> changed_by(Deployment(gpu="H100"), None, "replicas=2:3,scale-up-after=9")[1].maximum
    3
    >>> changed_by(Deployment(gpu="H100"), None, "link=50")[0].link_gigabytes_per_second
    50.0
    >>> changed_by(Deployment(gpu="H100"), None, "accuracies=0.6x0.2,0.5,tp=2")[0].accuracies
    '0.6x0.2,0.5'
    """
    given = _given(change)
    fields: dict[str, Any] = msgspec.structs.asdict(deployment)
    scaled: dict[str, Any] = {} if scaling is None else msgspec.structs.asdict(scaling)
    bounds = _BOUNDS.fullmatch(given.get("replicas", ""))
    if bounds is not None:
        given["replicas"] = bounds[1]
        scaled |= {"minimum": bounds[1], "maximum": bounds[2]}
    elif "replicas" in given and not any(key.startswith(PREFIX) for key in given):
        scaled = {}
    for key, value in given.items():
        if key in fields:
            fields[key] = value
        elif key != TARGET:
            scaled[key.removeprefix(PREFIX)] = value
    if TARGET in given:
        scaled[_target(scaled)] = given[TARGET]
    try:
        found = msgspec.convert(fields, Deployment, strict=False)
        if not scaled:
            return found, None
        if "maximum" not in scaled:
            raise InputError(
                f"--what-if {change}: nothing scales; say bounds beside it, such as replicas=1:4"
            )
        scaled.setdefault("minimum", found.replicas)
        return found, msgspec.convert(scaled, Scaling, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"--what-if {change}: {error}{_values(str(error))}") from None


def _given(change: str) -> dict[str, str]:
    """The values of a change by the names of fields, and by `scale_target`."""
    options = _options()
    known = {*options.values()}
    found = {}
    # A value may have commas of its own: what has no sign goes on with the value before it.
    for part in re.split(r",(?=[^,=]*=)", change):
        key, sign, value = (word.strip() for word in part.partition("="))
        key = key.replace("-", "_")
        key = options.get(key, key)
        if not sign or key not in known:
            raise InputError(
                f"--what-if {change}: {key or part!r} is nothing that can be changed; give"
                f" KEY=VALUE with one of {', '.join(options)}"
            )
        found[key] = value
    return found


def _options() -> dict[str, str]:
    """The words of the options, and of fields that are no option, each with its field."""
    named = {PREFIX + option: PREFIX + field for option, field in LIMITS.items()}
    fields = [
        *Deployment.__struct_fields__,
        *(PREFIX + name for name in Scaling.__struct_fields__),
    ]
    others = [name for name in fields if name not in named.values()]
    return {_UNIT.sub("", name): name for name in others} | named | {TARGET: TARGET}


def _target(scaled: dict[str, Any]) -> str:
    """The field of `Scaling` that a target is."""
    on = scaled.get("on", "queue")
    return TARGETS.get(on, TARGETS["queue"])


def _values(refused: str) -> str:
    """The words that the field of a refused value takes, where it takes words."""
    field = re.search(r" - at `\$\.(\w+)`", refused)
    known = get_type_hints(Deployment) | get_type_hints(Scaling)
    words = get_args(known.get(field[1])) if field else ()
    named = [word for word in words if isinstance(word, str)]
    return f"; one of {', '.join(named)}" if named else ""
