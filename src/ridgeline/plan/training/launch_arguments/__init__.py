"""One layout in the words of training frameworks: one small file per framework.

Each file has a `NAME`, the version that its option names were `CHECKED` against, and two
functions: `cannot(request)`, what the framework has no setting for, and `write(request)`, its
command line and files. A layout that a framework cannot express is not bent into its words:
`launches` looks for the best layout of the search that it can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ridgeline.hardware.cluster import Cluster
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.launch_arguments import deepspeed, fsdp, megatron, nemo, torchtitan
from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written
from ridgeline.plan.training.search import Candidates
from ridgeline.records.estimate import Estimate
from ridgeline.records.plan import Launch


class Framework(Protocol):
    """What every module of this folder offers."""

    NAME: str
    CHECKED: str

    def cannot(self, request: LaunchRequest) -> list[str]:
        """Why the framework cannot run the layout, one sentence each; empty when it can."""

    def write(self, request: LaunchRequest) -> Written:
        """Command line and files."""


FRAMEWORKS: tuple[Framework, ...] = (torchtitan, megatron, nemo, deepspeed, fsdp)
SHARDING_ALONE: tuple[Framework, ...] = (deepspeed, fsdp)
"""The frameworks whose files say how a model is sharded, whatever is trained of it."""


def launches(
    model: ModelSpec,
    families: Candidates,
    best: Estimate,
    cluster: Cluster,
    seq: int,
    tokens: float | None = None,
    *,
    adapters: bool = False,
) -> list[Launch]:
    """For each framework, the best layout that it can run, in its words.

    Their command lines are those that train causal language models: of others there is none. Those
    of the frameworks that bring a model along train all of its weights: with `adapters` they are
    left out.
    """
    if not model.is_causal_language_model:
        return []
    request = LaunchRequest(
        model=model,
        layout=best.layout,
        cluster=cluster,
        seq=seq,
        tokens=tokens,
        adapters=adapters,
    )
    frameworks = SHARDING_ALONE if adapters else FRAMEWORKS
    return [_launch(framework, request, families, best) for framework in frameworks]


def _launch(
    framework: Framework, request: LaunchRequest, families: Candidates, best: Estimate
) -> Launch:
    reasons = framework.cannot(request)
    chosen, slower = request, 1.0
    for index in range(len(families)):
        if not framework.cannot(chosen):
            break
        chosen = replace(request, layout=families.layouts.at(index))
        slower = float(families.step_seconds[index]) / best.step_seconds
    if framework.cannot(chosen):
        none = f"none of the layouts that fit can be run by {framework.NAME}"
        return Launch(
            framework=framework.NAME,
            command="",
            cannot=[*reasons, none],
            layout=best.layout,
            times_slower=1.0,
        )
    written = framework.write(chosen)
    return Launch(
        framework=framework.NAME,
        command=written.command,
        files=written.files,
        cannot=reasons,
        layout=chosen.layout,
        times_slower=slower,
    )
