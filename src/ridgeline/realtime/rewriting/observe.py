"""What the modules of a pipeline do during some frames: how often, how long, on what."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from ridgeline.realtime.recording import Recording, replay
from ridgeline.realtime.rewriting.graph import Call, WrappedStage, with_calls
from ridgeline.realtime.rewriting.layers import Inner, Rank, lay, lift, ranks_of
from ridgeline.realtime.rewriting.modules import modules_of, outermost_modules, weight_digest
from ridgeline.runtimes.capture.structure import UnknownStructure, flatten

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ridgeline.realtime.pipeline import Pipeline

_DIGESTED_CALLS = 16
_CHANGE_TILE = 32
_CHANGE = 0.05
_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedModule:
    """One module of a stage, over the observed frames."""

    name: str
    """Its name as `stage:path`."""
    kind: str
    """The name of its class."""
    calls_per_frame: float
    seconds_per_frame: float
    """Its inner modules included."""
    tensors_only: bool
    """Tensors in, tensors out, and nothing else that differs from call to call."""
    shapes: frozenset[tuple[tuple[int, ...], ...]]
    """Shapes of the tensors that went in, as they were seen."""
    dtypes: frozenset[str]
    keeps_gradients: bool
    """An answer remembers how to be differentiated."""
    has_convolutions: bool
    channels_last: bool
    parameters: int
    digest: str
    """Equal for modules of equal structure and weights."""
    inputs: frozenset[str]
    """Digests of what went in on the first frames."""
    changed_share: float | None
    """Share of the tiles of its input that changed from call to call; None: no image."""
    ranks: frozenset[Rank] = frozenset()
    """Layers that cures have laid around it."""
    parts_layered: bool = False
    """A module inside of it carries a layer."""

    @property
    def stage(self) -> str:
        """The stage that reaches it."""
        return self.name.split(":")[0]

    def is_inside(self, other: ObservedModule) -> bool:
        """Whether it is a part of another module."""
        if self.name == other.name or not self.name.startswith(other.name):
            return False
        return other.name.endswith(":") or self.name[len(other.name)] == "."


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPipeline:
    """What a pipeline did over the observed frames; what a cure judges by."""

    frame_seconds: float
    """Median time that one frame keeps the stages busy."""
    stage_seconds: Mapping[str, float]
    """Stage → median seconds of a call."""
    modules: tuple[ObservedModule, ...]
    samples: Mapping[str, Sequence[tuple[Any, Any]]] = field(default_factory=dict)
    """Stage of one input that reaches no module → some inputs with their outputs."""
    has_quality: bool = False
    """The pipeline says how good its results are."""
    queue_ratio: float = 1.0
    """Age of results at the declared rate over that without waiting; above 1 frames queue."""
    cores: int = 1

    def share(self, seconds: float) -> float:
        """Which share of the frame so many seconds are."""
        return seconds / self.frame_seconds if self.frame_seconds else 0.0

    def largest(self, rank: Rank, *, least_share: float = 0.02) -> tuple[ObservedModule, ...]:
        """Modules that matter and can take a layer, without those inside of another such.

        They take and give tensors only, and no part of them has been changed.
        """
        fit = [
            one
            for one in self.modules
            if one.tensors_only
            and one.parameters
            and not one.parts_layered
            and (rank not in one.ranks or rank == Rank.PROGRAM)  # another program replaces it
            and self.share(one.seconds_per_frame) >= least_share
        ]
        return tuple(one for one in fit if not any(one.is_inside(other) for other in fit))


@dataclass(slots=True)
class _Looking:
    """Time that the looking itself took, which is no module's."""

    seconds: float = 0.0


@dataclass(slots=True)
class _Watched:
    """What is gathered of one module while it is watched."""

    looking: _Looking
    calls: int = 0
    seconds: float = 0.0
    tensors_only: bool = True
    structures: set[str] = field(default_factory=set)
    shapes: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    keeps_gradients: bool = False
    inputs: set[str] = field(default_factory=set)
    changes: list[float] = field(default_factory=list)
    last: Tensor | None = None

    def layer(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:
        """Compute, and note what went in and came out."""
        looked, begun = self.looking.seconds, time.perf_counter()
        answer = inner(*args, **kwargs)
        ended = time.perf_counter()
        self.seconds += ended - begun - (self.looking.seconds - looked)
        self.calls += 1
        self._note(answer, args, kwargs)
        self.looking.seconds += time.perf_counter() - ended
        return answer

    def _note(self, answer: Any, args: Any, kwargs: Any) -> None:
        try:
            inputs, structure = flatten((args, kwargs))
            outputs, _ = flatten(answer)
        except UnknownStructure:
            self.tensors_only = False
            return
        self.structures.add(repr(structure))
        self.tensors_only &= bool(inputs and outputs) and len(self.structures) == 1
        self.shapes.add(tuple(tuple(one.shape) for one in inputs))
        self.dtypes |= {str(one.dtype).removeprefix("torch.") for one in inputs}
        self.keeps_gradients |= any(one.requires_grad for one in outputs)
        if self.calls <= _DIGESTED_CALLS:
            self._look_at(inputs)

    def _look_at(self, inputs: list[Tensor]) -> None:
        import torch

        from ridgeline.realtime.rewriting.regions import changed_tiles

        digest = hashlib.blake2b(digest_size=12)
        for one in inputs:
            flat = one.detach().cpu().contiguous().flatten()
            digest.update(repr((tuple(one.shape), one.dtype)).encode())
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        self.inputs.add(digest.hexdigest())
        if len(inputs) != 1 or inputs[0].dim() != 4 or not inputs[0].is_floating_point():
            return
        image = inputs[0].detach()
        if self.last is not None and self.last.shape == image.shape:
            changed = changed_tiles(self.last, image, _CHANGE_TILE, _CHANGE)
            self.changes.append(float(changed.float().mean()))
        self.last = image.clone()


def observe(
    pipeline: Pipeline, recording: Recording, frames: range, cores: int
) -> ObservedPipeline:
    """Run recorded frames with every module of the stages watched, then without.

    Raises:
        InputError: A stage raised.
    """
    modules = modules_of(pipeline)
    looking = _Looking()
    watched = {name: _Watched(looking) for name in modules}
    for name, module in modules.items():
        lay(module, Rank.WATCH, watched[name].layer)
    try:
        sampled, samples = _sampling(pipeline)
        replay(sampled, recording, frames)
    finally:
        for module in modules.values():
            lift(module, Rank.WATCH)
    plain = replay(pipeline, recording, frames)
    return ObservedPipeline(
        frame_seconds=median(plain.frame_seconds),
        stage_seconds={name: median(spent) for name, spent in plain.stage_seconds.items()},
        modules=tuple(
            _observed(name, module, watched[name], len(plain.frame_seconds))
            for name, module in modules.items()
            if watched[name].calls
        ),
        samples=samples,
        cores=cores,
    )


def _sampling(pipeline: Pipeline) -> tuple[Pipeline, dict[str, list[tuple[Any, Any]]]]:
    """The pipeline with the first frames of stages without modules kept, and where they are."""
    samples: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for stage in pipeline.shape.stages:
        if len(stage.inputs) == 1 and not outermost_modules(pipeline.code[stage.name].call):
            keep = partial(_Sampled, kept=samples[stage.name])
            pipeline = with_calls(pipeline, keep, [stage.name])
    return pipeline, samples


class _Sampled(WrappedStage):
    """A stage whose first frames are kept."""

    def __init__(self, call: Call, *, kept: list[tuple[Any, Any]]) -> None:
        super().__init__(call)
        self._kept = kept

    def __call__(self, *inputs: Any) -> Any:
        output = self.call(*inputs)
        if len(self._kept) < _SAMPLES:
            self._kept.append((inputs[0], output))
        return output


def _observed(name: str, module: nn.Module, seen: _Watched, frames: int) -> ObservedModule:
    import torch
    from torch import nn

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    weights = [one for one in module.parameters() if one.dim() == 4]
    return ObservedModule(
        name=name,
        kind=type(module).__name__,
        calls_per_frame=seen.calls / frames,
        seconds_per_frame=seen.seconds / frames,
        tensors_only=seen.tensors_only,
        shapes=frozenset(seen.shapes),
        dtypes=frozenset(seen.dtypes),
        keeps_gradients=seen.keeps_gradients,
        has_convolutions=any(isinstance(one, kinds) for one in module.modules()),
        channels_last=all(one.is_contiguous(memory_format=torch.channels_last) for one in weights),
        parameters=sum(one.numel() for one in module.parameters()),
        digest=weight_digest(module),
        inputs=frozenset(seen.inputs),
        changed_share=median(seen.changes) if seen.changes else None,
        ranks=ranks_of(module),
        parts_layered=any(ranks_of(inner) for inner in module.modules() if inner is not module),
    )
