"""What is asked of the serving model: one replica, and whether the fit can answer for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.cost.serving.kept_model import keeping
from ridgeline.cost.serving.matmul_dtypes import matmul_dtype
from ridgeline.cost.serving.setting import (
    ServingLayout,
    check_generates,
    default_cache,
)
from ridgeline.cost.serving.weight_formats import cache_format, weight_format
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.facts import Device
from ridgeline.models.counts import parameter_count
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import Calibration
from ridgeline.plan.serving.spreads import Neighbourhood
from ridgeline.plan.simulate.drafting import Drafting

BEYOND = 2.0
"""How far beyond the fitted range, as a factor, a question still counts as within it."""
FARTHEST = 16.0
"""How far above the fitted range, as a factor, a question is still answered, in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingQuestion:
    """What runs on what, for requests of what lengths."""

    model: ModelSpec
    device: Device
    tp: int = 1
    """Devices that share each sequence's attention."""
    attention_dp: int = 1
    """Groups of these that take whole sequences and share the experts."""
    ep: int = 1
    """Groups among which whole experts are dealt out."""
    weights: str = "bf16"
    cache: str = ""
    """What the cache is kept in; empty: what such checkpoints come with."""
    engine: str = "python"
    prompt: float
    completion: float
    chunk: float | None = None
    most_sequences: float | None = None
    kept: KeptTokens | None = None
    """The tokens that each one sees; None: all before it."""
    drafting: Drafting | None = None
    """The guesses that steps check; None: none."""

    @property
    def seen_model(self) -> ModelSpec:
        """The model as its tokens see each other.

        Raises:
            InputError: They cannot see those alone that `kept` says.
        """
        if self.kept is None:
            return self.model
        return keeping(self.model, self.kept.recent, self.kept.first)

    @property
    def layout(self) -> ServingLayout:
        """What the replica's devices share."""
        return ServingLayout(tp=self.tp, attention_dp=self.attention_dp, ep=self.ep)

    @property
    def place(self) -> Neighbourhood:
        """Where the question lies, as far as errors depend on it."""
        return Neighbourhood(
            architecture=self.device.architecture,
            engine=self.engine,
            experts=self.model.experts is not None,
            layout=self.layout,
        )

    @property
    def cache_kind(self) -> str:
        """What the cache is kept in."""
        return self.cache or default_cache(self.weights)


def check(replica: ServingQuestion, calibration: Calibration) -> None:
    """Refuse what does not generate, and what lies far above all that was fitted."""
    check_generates(replica.model)
    check_range(calibration, _asked(replica))


def doubts(replica: ServingQuestion, calibration: Calibration) -> list[str]:
    """What of a question no fitted run is near to, one sentence each: intervals widen for it."""
    found = []
    kind = matmul_dtype(replica.device, replica.weights)
    if calibration.rows and not seen(calibration, replica.device, kind):
        found.append(
            f"no published run of {replica.device.architecture} with {kind} matmuls is in the fit:"
            " how near serving comes to its limits is what was believed before any run; with such"
            " a machine `ridgeline serve MODEL --step-log LOG` there measures it"
        )
    if beyond := beyond_range(replica, calibration):
        found.append(beyond)
    return found


def seen(calibration: Calibration, device: Device, kind: str) -> bool:
    """Whether the fit saw runs of such hardware; 16-bit kinds count as one."""
    sixteen = {"bf16", "fp16"}
    kinds = set(calibration.rows.get(device.architecture, {}))
    return bool(kinds & sixteen) if kind in sixteen else kind in kinds


def replica_of(model: ModelSpec, gpu: str, **values: object) -> ServingQuestion:
    """A replica on the device called `gpu`."""
    values["weights"] = weight_format(str(values.get("weights", "bf16")))
    if cache := str(values.get("cache", "")):
        values["cache"] = cache_format(cache)
    empty = ServingQuestion(model=model, device=catalogue.device(gpu), prompt=1.0, completion=1.0)
    return replace(empty, **values)  # type: ignore[arg-type]  # the fields of ServingQuestion


def check_range(calibration: Calibration, asked: Mapping[str, float]) -> None:
    """Refuse what lies far above all that was fitted.

    Raises:
        InputError: With what was asked and what is known.
    """
    above = {
        name: value
        for name, value in asked.items()
        if name in calibration.ranges and value > calibration.ranges[name][1] * FARTHEST
    }
    if above:
        raise InputError(
            f"{_beyond(calibration, above)}: no honest interval; measure one run and fit to it, or"
            " ask within the range"
        )


def beyond_range(replica: ServingQuestion, calibration: Calibration) -> str:
    """What of a question no fitted run is near to; empty: nothing is."""
    return _beyond(calibration, _asked(replica))


def _asked(replica: ServingQuestion) -> dict[str, float]:
    return {
        "parameters": float(parameter_count(replica.model)),
        "tp": float(replica.tp),
        "prompt": replica.prompt,
        "completion": replica.completion,
    }


def _beyond(calibration: Calibration, asked: Mapping[str, float]) -> str:
    for name, value in asked.items():
        if name not in calibration.ranges:
            continue
        low, high = calibration.ranges[name]
        if not low / BEYOND <= value <= high * BEYOND:
            return (
                f"{name} {value:.4g} is outside what the model was fitted to"
                f" ({low:.4g} to {high:.4g}, a factor of {BEYOND:g} allowed)"
            )
    return ""
