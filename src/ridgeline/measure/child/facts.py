"""Reading the script's models, optimizers, loaders and global switches into records."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from typing import Any

import msgspec
import torch
from torch import nn

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.anatomy import (
    channels_last_of,
    children,
    is_in_training,
    named_parameters,
    parameters,
    parts,
    weights,
)
from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.usage import Usage, graph_compiles, used_since
from ridgeline.measure.child.watched import LoaderWatch, ModelWatch, OptimizerWatch
from ridgeline.records import LoaderFacts, ModelFacts, OptimizerFacts, Settings
from ridgeline.records.script_facts import Habit, HabitName

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
UNKNOWN = "unknown"
"""The value of a switch that torch refuses to tell."""
_ATTENTION_NAMES = ("attention", "attn", "multihead")


def model_facts(agent: Agent, steps: int) -> list[ModelFacts]:
    """Every outermost module with weights that was called, largest first."""
    facts = [
        attempt(_model, module, watch, max(steps, 1), otherwise=None)
        for watch in agent.watched.models.values()
        if watch.num_parameters and (module := watch.module()) is not None and watch.calls
    ]
    return sorted((f for f in facts if f is not None), key=lambda f: -f.num_parameters)


def _model(module: nn.Module, watch: ModelWatch, steps: int) -> ModelFacts:
    held = weights(module)
    modules = parts(module)
    wrapper = type(module).__name__ if type(module).__name__ in _WRAPPERS else None
    inner = module.module if wrapper and isinstance(module.module, nn.Module) else module
    if type(inner).__name__ == "OptimizedModule":
        inner = inner._orig_mod  # type: ignore[assignment]
    block, repeats = attempt(repeated_block, inner, otherwise=(None, 0))
    convolutions = [m for m in modules if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    names = {type(m).__name__.lower() for m in modules}
    return ModelFacts(
        name=_class_name(inner),
        num_parameters=watch.num_parameters,
        num_parameter_tensors=len(held),
        parameter_bytes=sum(p.numel() * p.element_size() for p in held),
        num_trainable=sum(p.numel() for p in held if p.requires_grad),
        dtype=str(held[0].dtype).removeprefix("torch."),
        device=str(watch.device_of(held[0])),
        num_modules=len(modules),
        training=is_in_training(module),
        repeated_block=block,
        num_repeated=repeats,
        has_convolutions=bool(convolutions),
        convolves=attempt(_convolves, convolutions, otherwise=[]),
        channels_last=attempt(_is_channels_last, convolutions, otherwise=False),
        has_batch_norm=any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules),
        has_recurrent=any(isinstance(m, nn.RNNBase) for m in modules),
        has_dropout=any(isinstance(m, nn.Dropout) and m.p > 0 for m in modules),
        has_attention=any(word in name for name in names for word in _ATTENTION_NAMES),
        checkpointing=watch.recomputed
        or attempt(_recomputes_in_compiled_code, module, otherwise=False),
        compiled=_is_compiled(module) or _is_compiled(inner),
        scripted=any(isinstance(part, torch.jit.ScriptModule) for part in modules),
        wrapper=wrapper,
        ddp_find_unused=_is_on(wrapper, module, "find_unused_parameters"),
        ddp_static_graph=_is_on(wrapper, module, "static_graph"),
        ddp_bucket_view=_is_on(wrapper, module, "gradient_as_bucket_view"),
        forward_site=watch.site,
        calls_per_step=watch.calls / steps,
        float_outputs=watch.float_outputs or [],
        odd_dimensions=attempt(odd_dimensions, inner, otherwise={}),
    )


def _is_on(wrapper: str | None, module: nn.Module, switch: str) -> bool:
    return wrapper is not None and bool(getattr(module, switch, False))


def _is_compiled(module: nn.Module) -> bool:
    if type(module).__name__ == "OptimizedModule":
        return True
    return any(m._compiled_call_impl is not None for m in parts(module))


def _recomputes_in_compiled_code(module: nn.Module) -> bool:
    """What runs again there cannot be seen: the modules' own switch (transformers) is asked."""
    return _is_compiled(module) and any(
        getattr(part, "gradient_checkpointing", False) is True and part.training
        for part in parts(module)
    )


def repeated_block(module: nn.Module) -> tuple[str | None, int]:
    """Class and count of the container-held block that repeats and holds most parameters."""
    best: tuple[int, str, int] | None = None
    for container in parts(module):
        if not isinstance(container, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            continue
        held = children(container)
        counts = Counter(type(child).__name__ for child in held)
        for name, count in counts.items():
            alike = [child for child in held if type(child).__name__ == name]
            weight = sum(p.numel() for child in alike for p in parameters(child))
            deep = bool(children(alike[0]))
            if count >= 2 and deep and weight and (best is None or weight > best[0]):
                best = (weight, name, count)
    return (best[1], best[2]) if best else (None, 0)


def odd_dimensions(module: nn.Module, at_most: int = 8) -> dict[str, int]:
    """Matmul weights with a dimension that is not a multiple of 8, by name."""
    odd: dict[str, int] = {}
    for name, parameter in named_parameters(module):
        if parameter.dim() != 2 or len(odd) >= at_most:
            continue
        bad = [size for size in parameter.shape if size % 8 and size >= 32]
        if bad:
            odd[name] = int(bad[0])
    return odd


def _class_name(module: nn.Module) -> str:
    """The name of its class; of a TorchScript program, that of the class it was made of."""
    is_program = isinstance(module, torch.jit.ScriptModule)
    return str(module.original_name) if is_program else type(module).__name__


def _convolves(convolutions: list[Any]) -> list[int]:
    return sorted({m.weight.dim() - 2 for m in convolutions})


def _is_channels_last(convolutions: list[Any]) -> bool:
    weights = [(m.weight, channels_last_of(m.weight)) for m in convolutions]
    of_images = [(w, last) for w, last in weights if last is not None]
    return bool(of_images) and all(w.is_contiguous(memory_format=f) for w, f in of_images)


def optimizer_facts(agent: Agent, steps: int) -> list[OptimizerFacts]:
    """Every optimizer that stepped, in the order they were made."""
    facts = [
        attempt(_optimizer, optimizer, watch, max(steps, 1), otherwise=None)
        for watch in agent.watched.optimizers.values()
        if (optimizer := watch.optimizer()) is not None and watch.prepared
    ]
    return [fact for fact in facts if fact is not None]


def _optimizer(
    optimizer: torch.optim.Optimizer, watch: OptimizerWatch, steps: int
) -> OptimizerFacts:
    groups = [group for group in optimizer.param_groups if isinstance(group, dict)]
    stepped = [
        p for group in groups for p in group.get("params", ()) if isinstance(p, torch.Tensor)
    ]
    state = [
        value
        for entry in optimizer.state.values()
        if isinstance(entry, dict)
        for value in entry.values()
        if isinstance(value, torch.Tensor)
    ]
    return OptimizerFacts(
        name=type(optimizer).__name__,
        num_parameter_tensors=len(stepped),
        num_parameters=sum(p.numel() for p in stepped),
        fused=any(bool(group.get("fused")) for group in groups),
        foreach=any(bool(group.get("foreach")) for group in groups),
        supports_fused="fused" in inspect.signature(type(optimizer).__init__).parameters,
        state_bytes=sum(t.numel() * t.element_size() for t in state),
        steps_per_step=watch.steps / steps,
        site=watch.site,
        step_site=watch.step_site,
        zeroes_in_place=watch.zeroed_in_place > 0,
    )


def loader_facts(agent: Agent) -> list[LoaderFacts]:
    """Every DataLoader that was iterated."""
    facts = [
        attempt(_loader, watch.facts, watch, agent, otherwise=None)
        for watch in agent.watched.loaders.values()
        if watch.facts is not None and (watch.waits or watch.starts)
    ]
    return [fact for fact in facts if fact is not None]


def _loader(untimed: LoaderFacts, watch: LoaderWatch, agent: Agent) -> LoaderFacts:
    waits = watch.waits or watch.starts
    wait = sum(waits) / len(waits)
    padding = agent.watched.padding
    fetch = watch.fetches.per_batch()
    return msgspec.structs.replace(
        untimed,
        batch_bytes=watch.batch_bytes,
        fetch_seconds=fetch[0] if fetch else None,
        fetch_cpu_seconds=fetch[1] if fetch else None,
        fetch_read_bytes=fetch[2] if fetch else 0.0,
        fetch_disk_bytes=fetch[3] if fetch else 0.0,
        wait_seconds=wait,
        restarts=watch.restarts,
        start_seconds=sum(watch.starts) / len(watch.starts) if watch.starts else 0.0,
        padding_share=sum(padding) / len(padding) if padding else 0.0,
    )


def habits(agent: Agent, steps: int, evaluation_seconds: float) -> dict[HabitName, Habit]:
    """Habits per step; how long evaluations took is the phase clock's to tell."""
    steps = max(steps, 1)
    found = {
        name: Habit(calls=tally.calls / steps, seconds=tally.seconds / steps, site=tally.site)
        for name, tally in agent.watched.habits.items()
        if tally.calls
    }
    if "evaluation" in found:
        seconds = evaluation_seconds / steps
        found["evaluation"] = msgspec.structs.replace(found["evaluation"], seconds=seconds)
    return found


def settings(agent: Agent, steps: int, before: Usage) -> Settings:
    """Global switches as they stand, and what was used since `before` was read."""
    steps = max(steps, 1)
    switches = agent.watched.switches
    padding = agent.watched.padding
    return Settings(
        num_threads=torch.get_num_threads(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        matmul_precision=_matmul_precision(),
        autocast_dtype=switches.autocast_dtype,
        gradient_scaler=switches.gradient_scaler,
        anomaly_detection=torch.is_anomaly_enabled(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        autograd_profiler=switches.profiler_on or torch.autograd._profiler_enabled(),  # type: ignore[no-untyped-call]
        gc_seconds=switches.gc_seconds / steps,
        records_gradients=agent.kind == "inference" and switches.gradients_enabled,
        backward_site=switches.backward_site,
        torchscript_site=switches.torchscript_site,
        forwards_per_step=switches.forwards / steps,
        backwards_per_step=switches.backwards / steps,
        graph_compiles=attempt(graph_compiles, otherwise=0),
        padding_share=sum(padding) / len(padding) if padding else 0.0,
        stated_sizes=attempt(agent.stated.sizes, otherwise={}),
        **used_since(before, steps),
    )


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses once the script has used the switch's new name
        return UNKNOWN


def device_name(agent: Agent) -> str:
    """`cuda:0 NVIDIA …` or `cpu`: what the largest model sits on."""
    return attempt(_device_name, agent, otherwise="cpu")


def _device_name(agent: Agent) -> str:
    models = [
        (watch.num_parameters, module, watch)
        for watch in agent.watched.models.values()
        if (module := watch.module()) is not None and not watch.is_meta
    ]
    if not models:
        return "cpu"
    _, largest, watch = max(models, key=lambda model: model[0])
    weight = next(iter(weights(largest)), None)
    if weight is None:
        return "cpu"
    device = watch.device_of(weight)
    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def device_memory_bytes(agent: Agent) -> int:
    """Memory of the device that `device_name` names; RAM for the CPU."""
    if device_name(agent).startswith("cuda"):
        return int(torch.cuda.get_device_properties(0).total_memory)
    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
