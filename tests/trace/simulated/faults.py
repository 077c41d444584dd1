"""Faults, each a change of a healthy program: `FAULTS[name](program, strength)`.

A strength is mostly a share of the healthy step's GPU time, so that one number means the same on a
fast GPU and a slow one. `CAUSES` says what a verdict should call each fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.trace.simulated.program import Loader, Program, StartUp, Stops, gpu_of
from tests.trace.simulated.workloads import built

Fault = Callable[[Program, float], Program]


def _trouble(program: Program, **changes: object) -> Program:
    return replace(program, trouble=replace(program.trouble, **changes))  # type: ignore[arg-type]


def _parallel(program: Program, **changes: object) -> Program:
    return replace(program, parallel=replace(program.parallel, **changes))  # type: ignore[arg-type]


def _stops(program: Program, per: str, by: str = "item") -> Program:
    return replace(program, stops=Stops(per=per, by=by))


def slow_loader(program: Program, strength: float) -> Program:
    """Batches are made in the launching thread, in this share of the GPU's step."""
    old = program.loader or Loader()
    return replace(program, loader=replace(old, workers=0, batch_us=strength * program.step_us()))


def plain_loader(program: Program, strength: float) -> Program:
    """The same by a generator of the user's own, which the profiler does not name."""
    slow = slow_loader(program, strength)
    assert slow.loader is not None
    return replace(slow, loader=replace(slow.loader, annotated=False))


def slow_workers(program: Program, strength: float) -> Program:
    """Four workers together make a batch in this share of the GPU's step."""
    old = program.loader or Loader()
    return replace(
        program, loader=replace(old, workers=4, batch_us=4 * strength * program.step_us())
    )


def slow_python(program: Program, strength: float) -> Program:
    """Python between operators takes this share of the GPU's step in all."""
    many = sum(1 for op in program.ops if not op.collective)
    each = strength * program.step_us() / many
    return replace(program, host=replace(program.host, slow_python_us=each))


def pageable(program: Program, strength: float) -> Program:
    """Two copies of pageable memory a step, together this share of the GPU's step."""
    rate = gpu_of(program.gpu).pageable_bytes_per_second
    size = strength * program.step_us() * 1e-6 * rate / 2
    return _trouble(program, copies_per_step=2, copy_bytes=size)


def offload(program: Program, strength: float) -> Program:
    """State moves out and in again, for this share of the GPU's step."""
    rate = gpu_of(program.gpu).pinned_bytes_per_second
    return _trouble(program, offload_bytes=strength * program.step_us() * 1e-6 * rate / 2)


def _rebuilt(program: Program, **options: Any) -> Program:
    """The same program with other kernels."""
    made = built(program.name, program.gpu, program.options | options)
    return replace(program, forward=made.forward, backward=made.backward, options=made.options)


def late_module(program: Program, strength: float) -> Program:
    """One step in the middle needs a kernel whose module is loaded in its launch call."""
    return _trouble(program, module_us=strength * program.step_us() * program.steps)


def side_copy(program: Program, strength: float) -> Program:
    """A pinned copy on a side stream, which the main stream waits for."""
    rate = gpu_of(program.gpu).pinned_bytes_per_second
    return _trouble(program, side_copy_bytes=strength * program.step_us() * 1e-6 * rate)


def eager(program: Program, strength: float) -> Program:
    """No graph: every kernel is launched by itself, by a host of this many times the usual time."""
    host = program.host
    slower = replace(host, dispatch_us=strength * host.dispatch_us,
                     launch_us=strength * host.launch_us,
                     python_us=strength * host.python_us)  # fmt: skip
    return replace(program, graph=False, host=slower)


def start_up(program: Program, strength: float) -> Program:
    """Modules are loaded, the pool and a handle made, in this share of the whole run."""
    whole = strength * program.step_us() * program.steps
    sorts = len({kernel.sort for op in program.ops for kernel in op.all_kernels()})
    return replace(program, start_up=StartUp(
        module_us=0.6 * whole / sorts, malloc_us=0.02 * whole, mallocs=8, handle_us=0.24 * whole,
    ))  # fmt: skip


def small_reduces(program: Program, strength: float) -> Program:
    """An all-reduce for each this many bytes of gradients, after the backward pass."""
    return _parallel(program, bucket_bytes=strength, overlap=False)


def unbucketed(program: Program, strength: float) -> Program:
    """Every gradient is sent by itself, this many to an operator, beside the backward pass."""
    return _parallel(program, bucket_bytes=1.0, pieces=int(strength))


def cpu_optimizer(program: Program, strength: float) -> Program:
    """AdamW on the host, for this share of the GPU's step, a tenth of it copies each way."""
    whole = strength * program.step_us()
    moved = 0.1 * whole * 1e-6 * gpu_of(program.gpu).pinned_bytes_per_second
    return _trouble(program, host_optimizer_us=0.8 * whole, host_optimizer_bytes=moved)


def saving(program: Program, strength: float) -> Program:
    """A checkpoint in the middle, for this share of the run: a seventh of it copies."""
    whole = strength * program.step_us() * program.steps
    rate = gpu_of(program.gpu).pageable_bytes_per_second
    return _trouble(program, save_us=0.86 * whole, save_bytes=0.14 * whole * 1e-6 * rate)


def loop_optimizer(program: Program, strength: float) -> Program:
    """An optimizer that goes tensor by tensor, in this many kernels for each fused one."""
    tensors = max(1, int(strength))
    ops = tuple(
        replace(op, name="aten::addcdiv_", kernels=tuple(
            replace(kernel, flops=kernel.flops / tensors, bytes=kernel.bytes / tensors,
                    blocks=max(1, min(kernel.blocks, int(kernel.bytes / tensors / 28 / 1024))))
            for kernel in op.kernels
        ))
        for op in program.optimizer for _ in range(tensors)
    )  # fmt: skip
    return replace(program, optimizer=ops)


def synced_passes(program: Program, strength: float) -> Program:
    """Gradients are all-reduced after each of so many passes, not after the last."""
    _ = strength
    return _parallel(program, each_pass=True)


def late_message(program: Program, strength: float) -> Program:
    """One collective takes this share of the run longer."""
    whole = strength * program.step_us() * program.steps
    return _trouble(program, late_message=3, late_message_us=whole)


def throttled(program: Program, strength: float) -> Program:
    """Clocks fall in the second half of the run: arithmetic takes this share longer."""
    return _trouble(program, slower_from=program.warm + (program.steps - program.warm) // 2,
                    slower_by=1 + strength)  # fmt: skip


def shared_gpu(program: Program, strength: float) -> Program:
    """Another process has the GPU for this share of the time, two milliseconds at once."""
    return _trouble(program, slice_us=2000.0, slice_every_us=2000.0 / strength)


def slow_host(program: Program, strength: float) -> Program:
    """A core far from the GPU, or a slow one: the host takes so many times as long for all."""
    host = program.host
    return replace(program, host=replace(
        host, dispatch_us=strength * host.dispatch_us, launch_us=strength * host.launch_us,
        python_us=strength * host.python_us,
    ))  # fmt: skip


def stream_copy(program: Program, strength: float) -> Program:
    """Batches move in the stream of the kernels, for this share of the GPU's step."""
    rate = gpu_of(program.gpu).pinned_bytes_per_second
    return _trouble(program, stream_copy_bytes=strength * program.step_us() * 1e-6 * rate)


def evaluation(program: Program, strength: float) -> Program:
    """An evaluation in the middle, for this share of the run's kernels."""
    gpu = gpu_of(program.gpu)
    once = sum(kernel.time_us(gpu) for op in program.forward for kernel in op.all_kernels())
    many = round(strength * program.step_us() * program.steps / once)
    return _trouble(program, evaluations=max(1, many))


def few_passes(program: Program, strength: float) -> Program:
    """The batch of a pipeline in so many times fewer micro-batches."""
    times = max(1, int(strength))
    old = program.options
    made = built(program.name, program.gpu, old | {
        "tokens": times * old.get("tokens", 2048), "passes": max(1, program.passes // times),
    })  # fmt: skip
    return replace(program, forward=made.forward, backward=made.backward, passes=made.passes,
                   parallel=made.parallel, options=made.options)  # fmt: skip


def link(name: str) -> Fault:
    def slow_link(program: Program, strength: float) -> Program:
        """The ranks talk over a slower link; the strength says nothing."""
        _ = strength
        return _parallel(program, link=name)

    return slow_link


FAULTS: dict[str, Fault] = {
    "slow-loader": slow_loader,
    "plain-loader": plain_loader,
    "slow-workers": slow_workers,
    "item-step": lambda program, strength: _stops(program, "step"),
    "poll-step": lambda program, strength: _stops(program, "step", "poll"),
    "item-layer": lambda program, strength: _stops(program, "layer"),
    "event-layer": lambda program, strength: _stops(program, "layer", "event"),
    "poll-layer": lambda program, strength: _stops(program, "layer", "poll"),
    "slow-python": slow_python,
    "eager": eager,
    "prepare": lambda program, strength: _trouble(
        program, prepare_us=strength * program.step_us()
    ),
    "finish": lambda program, strength: _trouble(program, finish_us=strength * program.step_us()),
    "uncached": lambda program, strength: _trouble(program, frees_per_step=int(strength)),
    "start-up": start_up,
    "pageable": pageable,
    "offload": offload,
    "no-overlap": lambda program, strength: _parallel(program, overlap=False),
    "unbucketed": unbucketed,
    "slow-link": link("pcie"),
    "slow-network": link("network"),
    "small-reduces": small_reduces,
    "late-host": lambda program, strength: _trouble(
        program, late_rank=program.parallel.ranks - 1, late_host_us=strength * program.step_us()
    ),
    "late-gpu": lambda program, strength: _trouble(
        program, late_rank=program.parallel.ranks - 1, late_compute=1 + strength
    ),
    "side-stream": lambda program, strength: _trouble(
        program, side_us=strength * program.step_us()
    ),
    "stall": lambda program, strength: _trouble(
        program, stall_us=strength * program.step_us(), stall_steps=tuple(range(1, program.steps))
    ),
    "lead": lambda program, strength: _trouble(
        program, lead_us=strength * program.step_us() * program.steps
    ),
    "lone-gap": lambda program, strength: _trouble(
        program, gap_us=strength * program.step_us() * program.steps
    ),
    "late-module": late_module,
    "small-copies": lambda program, strength: _trouble(program, small_copies=int(strength)),
    "pause": lambda program, strength: _trouble(program, pause_us=strength * program.step_us()),
    "recompile": lambda program, strength: _trouble(
        program, compile_us=strength * program.step_us() * program.steps
    ),
    "cpu-optimizer": cpu_optimizer,
    "save": saving,
    "loop-optimizer": loop_optimizer,
    "synced-passes": synced_passes,
    "throttled": throttled,
    "shared-gpu": shared_gpu,
    "slow-host": slow_host,
    "stream-copy": stream_copy,
    "evaluation": evaluation,
    "imbalance": lambda program, strength: _trouble(program, imbalance=strength),
    "late-message": late_message,
    "side-copy": side_copy,
    "odd-gemm": lambda program, strength: _rebuilt(program, gemm=strength),
    "slow-softmax": lambda program, strength: _rebuilt(program, softmax=strength),
    "fp32": lambda program, strength: _rebuilt(program, dtype="fp32"),
    "no-gpu": lambda program, strength: replace(program, on_gpu=False),
    "few-passes": few_passes,
}  # fmt: skip
"""Name → change of a program; applied in this order, so that strengths are shares of what is
healthy: what makes kernels slower comes last."""

_BY_CAUSE = {
    "input-bound": "slow-loader slow-workers plain-loader",
    "sync-bound": "item-step poll-step item-layer event-layer poll-layer",
    "host-bound": "slow-python prepare finish lone-gap lead late-module plain-loader"
    " small-copies pause recompile cpu-optimizer save loop-optimizer slow-host",
    "host-bound-start-up": "start-up lead late-module recompile",
    "launch-bound": "eager small-copies loop-optimizer slow-host",
    "allocator-bound": "uncached",
    "copy-bound": "pageable offload side-copy small-copies save stream-copy",
    "dependency-wait": "side-stream side-copy",
    "device-stall": "stall shared-gpu",
    "uneven-kernels": "throttled shared-gpu",
    "communication-bound": "no-overlap slow-link slow-network small-reduces unbucketed"
    " synced-passes late-message",
    "rank-skew": "late-host late-gpu imbalance",
    "pipeline-bubble": "few-passes",
    "compute-bound": "odd-gemm fp32 evaluation",
    "memory-bound": "slow-softmax evaluation",
    "gpu-bound": "evaluation",
    "cpu-only": "no-gpu",
}
CAUSES: dict[str, frozenset[str]] = {
    fault: frozenset(cause for cause, faults in _BY_CAUSE.items() if fault in faults.split())
    for fault in FAULTS
}
"""Fault → what a verdict may call it."""
