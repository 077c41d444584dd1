"""How many replicas there may be and what they follow: options of `serve` and of its forecast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.cli.option_groups import OptionGroup
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.batching.scaling.policies import Policy
    from ridgeline.batching.scaling.settings import Scaling


class ScalingOptions(OptionGroup, frozen=True, kw_only=True):
    """How many replicas there may be, and what they follow."""

    replicas: Annotated[
        str, typer.Option(metavar="N or MIN:MAX", help="Engines behind one router; MIN:MAX scales.")
    ] = "1"
    scale_on: Annotated[
        Literal["queue", "kv", "slo"] | None,
        typer.Option(
            help="What replicas follow: open requests, KV blocks in use, or misses."
            " Default: queue.",
        ),
    ] = None
    scale_target: Annotated[
        float | None,
        typer.Option(
            help="What to keep: open requests per replica (queue, 8), blocks in use (kv, 0.7) or"
            " tokens in time (slo, 0.99)."
        ),
    ] = None
    scale_ttft: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="A later first token is a miss.")
    ] = None
    scale_itl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="A token later after another is a miss.")
    ] = None
    scale_up_after: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="More are wanted for so long first. Default: 0."),
    ] = None
    scale_down_after: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Fewer are wanted for so long first. Default: 300."),
    ] = None

    @property
    def least(self) -> int:
        """The replicas that there are at the least."""
        return replica_bounds(self.replicas)[0]

    def scaling(self) -> Scaling | None:
        """The settings that the options describe; None: a fixed number of replicas."""
        return scaling_of(
            self.replicas,
            self.scale_on,
            target=self.scale_target,
            ttft=self.scale_ttft,
            itl=self.scale_itl,
            up_after=self.scale_up_after,
            down_after=self.scale_down_after,
        )


def scaled_by(manifest: Path, given: ScalingOptions) -> tuple[Scaling, Callable[[], Policy]]:
    """The bounds of an autoscaler's manifest, and what makes the policy that it is.

    Raises:
        InputError: It is not understood, lets nobody be there, or options say otherwise.
    """
    from ridgeline.batching.scaling.settings import Scaling
    from ridgeline.launch.kube.scaling_policy import read_policy

    if given != ScalingOptions():
        raise InputError(
            "--autoscaler-manifest: it says how many replicas there may be and what they follow;"
            " leave --replicas and --scale-… out"
        )
    policy = read_policy(manifest)
    if policy.minimum < 1:
        raise InputError(
            f"--autoscaler-manifest {manifest}: the simulation has a replica at any time; write at"
            " least 1 as the smallest number"
        )
    scaling = Scaling(minimum=policy.minimum, maximum=policy.maximum)
    return scaling, lambda: read_policy(manifest)


def replica_bounds(text: str) -> tuple[int, int]:
    """Least and most replicas of `--replicas`.

    >>> replica_bounds("3"), replica_bounds("1:4")
    ((3, 3), (1, 4))
    """
    least, colon, most = text.partition(":")
    try:
        bounds = (int(least), int(most) if colon else int(least))
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise InputError(f"--replicas {text}: give a number, or bounds such as 1:4; at least one")
    return bounds


def scaling_of(replicas: str, on: str | None, **limits: float | None) -> Scaling | None:
    """The settings that the options describe; None: a fixed number of replicas.

    Args:
        replicas: `--replicas`.
        on: `--scale-on`.
        limits: `target`, `ttft`, `itl`, `up_after` and `down_after`, of the options of that name.

    Raises:
        InputError: An option is out of its range, or there is nothing for it to scale.
    """
    least, most = replica_bounds(replicas)
    given = {key: value for key, value in limits.items() if value is not None}
    if least == most:
        if on is not None or given:
            option = "--scale-on" if on is not None else _option(next(iter(given)))
            raise InputError(f"{option}: nothing scales; give bounds such as --replicas 1:4")
        return None
    for key, value in given.items():
        if value < 0.0:
            raise InputError(f"{_option(key)} {value:g}: it cannot be negative")
    return _scaling(least, most, on or "queue", given)


def _scaling(least: int, most: int, on: str, given: dict[str, float]) -> Scaling:
    import msgspec

    from ridgeline.batching.scaling.settings import LIMITS, TARGETS, Scaling

    if on not in TARGETS:
        raise InputError(f"--scale-on {on}: give queue, kv or slo")
    if on == "slo" and not {"ttft", "itl"} & set(given):
        raise InputError("--scale-on slo: say what a miss is, with --scale-ttft or --scale-itl")
    target = given.get("target")
    if target is not None and not _sound(on, target):
        says = {"queue": "above 0", "kv": "above 0, up to 1", "slo": "between 0 and 1"}[on]
        raise InputError(f"--scale-target {target:g}: with --scale-on {on} it is {says}")
    fields = {"target": TARGETS[on], **LIMITS}
    changes = {fields[key]: value for key, value in given.items()}
    return msgspec.convert({"minimum": least, "maximum": most, "on": on, **changes}, Scaling)


def _sound(on: str, target: float) -> bool:
    most = {"queue": float("inf"), "kv": 1.0, "slo": 1.0}[on]
    return 0.0 < target < most or (on == "kv" and target == most)


def _option(key: str) -> str:
    return "--scale-" + key.replace("_", "-")
