"""What a command does when it is told nothing else, its Python function does too."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import ridgeline
from ridgeline.cli.option_groups import with_flat_options
from ridgeline.diagnose.doctor import USUAL_PLAN
from ridgeline.measure.bisect.search import Question
from ridgeline.measure.statistics.metric import SampleMetric
from ridgeline.plan.training.trained import Trained
from ridgeline.realtime.gate import GateLimits
from ridgeline.realtime.run import RunSettings
from ridgeline.records.load import Slo
from ridgeline.tune.billing import RunTerms


class Pair(NamedTuple):
    """A command, and what takes its options in Python."""

    command: str
    """Module and function below `ridgeline.cli`."""
    functions: tuple[Callable[..., Any], ...]
    renamed: Mapping[str, str] = MappingProxyType({})
    only_typed: tuple[str, ...] = ()
    """Options that have no parameter of their own: what is shown, written or read from a file."""


OF_IMAGES = (
    "images",
    "labels",
    "boxes",
    "checkpoint",
    "resize",
    "crop",
    "mean",
    "std",
    "interpolation",
)
"""Options of vision models: which files, and how images become inputs."""
SHOWN = ("json", "html", "markdown", "report", "history")
PAIRS = [
    Pair("doctor.doctor", (ridgeline.doctor,), {"budget": "budget_seconds"},
         ("trace", "window", "out")),
    Pair("tune.tune", (ridgeline.TuneJob, RunTerms),
         {"budget": "budget_seconds", "period": "period_seconds"}),
    Pair("compare.compare", (ridgeline.compare_runs,)),
    Pair("bisect.bisect", (Question,),
         {"repo": "repository", "rounds": "most_rounds", "link": "linked"}),
    Pair("roofline.roofline", (ridgeline.model_roofline,), {}, ("image", "inputs")),
    Pair("explain.explain", (ridgeline.explain,)),
    Pair("evaluate.evaluate", (ridgeline.evaluate,), {},
         ("no_speed", "text", "against", "metric", *OF_IMAGES)),
    Pair("compress.compress", (ridgeline.compress, ridgeline.Material), {},
         ("no_speed", "scheme", "target", "aim", "merge_adapter", "export", "unjudged", "mixed",
          "metric", "faster", *OF_IMAGES)),
    Pair("plan_training.plan_training", (ridgeline.plan_training, Trained),
         {"precision": "precisions"},
         ("adapter_rank", "adapter_targets", "days", "disk", "disk_bandwidth", "domain_size",
          "domain_bandwidth", "network", "oversubscription", "write",
          "global_batch", "images", "epochs", "image", "most_global_batch", "optimizer",
          "cores_per_device", "inputs")),
    Pair("realtime_run.realtime_run", (RunSettings, GateLimits),
         {"worst": "worst_seconds", "mean": "mean_seconds"},
         ("deadline", "frames", "out", "trace")),
    Pair("validate.validate_training", (ridgeline.validate_training,)),
    Pair("train.train", (ridgeline.train_recipe,), {},
         ("out", "change", "rendezvous", "against")),
    Pair("simulate_serving.simulate_serving",
         (ridgeline.simulate_serving, ridgeline.Deployment, ridgeline.Load, Slo),
         {"link": "link_gigabytes_per_second", "startup": "startup_seconds",
          "dynamic_delay": "dynamic_delay_seconds",
          "warmup": "warmup_seconds", "slo_ttft": "ttft_seconds", "slo_tpot": "tpot_seconds",
          "slo_itl": "itl_seconds", "slo_e2e": "e2e_seconds"},
         ("steps", "alone", "autoscaler_manifest", "scale_on", "scale_target",
          "scale_ttft", "scale_itl", "scale_up_after", "scale_down_after")),
]  # fmt: skip
LEFT_TO_THE_TRACE = {("simulate_serving.simulate_serving", "arrivals")}
"""None on the command line: a trace's own times where one is given, and else the default."""
REPEATABLE = {("simulate_serving.simulate_serving", "seed")}
"""A simulation is the same every time; a `Load` is also what `loadtest` sends, anew each time."""


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    found = {one.name: one.default for one in parameters if one.default is not one.empty}
    if function is ridgeline.doctor:
        found |= {name: getattr(USUAL_PLAN, name) for name in ("warmup", "budget_seconds")}
        found["steps"] = None
    return found


def plain(value: Any) -> Any:
    """The same word for nothing, however it is written; numbers as numbers."""
    if value is None or value in ((), [], False):
        return None
    return value.name if isinstance(value, SampleMetric) else str(value)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.command)
def test_a_command_and_its_function_have_the_same_defaults(pair: Pair) -> None:
    module, _, name = pair.command.partition(".")
    command = getattr(importlib.import_module(f"ridgeline.cli.{module}"), name)
    known: dict[str, Any] = {}
    for function in pair.functions:
        known |= defaults(function)
    for option, default in defaults(with_flat_options(command)).items():
        if option in (*SHOWN, *pair.only_typed, "command"):
            continue
        if (pair.command, option) in LEFT_TO_THE_TRACE | REPEATABLE:
            continue
        parameter = pair.renamed.get(option, option)
        assert parameter in known, f"--{option} has no default in Python"
        assert plain(known[parameter]) == plain(default), option
