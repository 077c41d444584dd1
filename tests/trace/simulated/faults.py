"""Faults, each a change of a healthy program: `FAULTS[name](program, strength)`.

A strength is mostly a share of the healthy step's GPU time, so that one number means the same on a
fast GPU and a slow one. `CAUSES` says what a verdict should call each fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.trace.simulated.program import Gpu, Kernel, Loader, Op, Program, StartUp, Stops, gpu_of
from tests.trace.simulated.workloads import gpt, prefill, resnet

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


def odd_gemm(program: Program, strength: float) -> Program:
    """Matmuls reach this share of their roof: odd dimensions."""

    def slower(kernel: Kernel, gpu: Gpu) -> Kernel:
        wanted = kernel.sort.startswith("gemm") and kernel.bound(gpu) == "compute"
        return replace(kernel, efficiency=strength) if wanted else kernel

    return _kernels(program, slower)


def slow_softmax(program: Program, strength: float) -> Program:
    """Attention is not fused, its softmax reaches this share of its roof."""
    builders = {"gpt": gpt, "prefill": prefill}
    made = builders[program.name](program.gpu, softmax=strength, steps=program.steps)
    return replace(program, forward=made.forward, backward=made.backward)


def fp32(program: Program, strength: float) -> Program:
    """Plain fp32 in place of a 16-bit format; the strength says nothing."""
    _ = strength
    builders = {"gpt": gpt, "resnet": resnet}
    made = builders[program.name](program.gpu, dtype="fp32", steps=program.steps)
    return replace(program, forward=made.forward, backward=made.backward)


def _kernels(program: Program, change: Callable[[Kernel, Gpu], Kernel]) -> Program:
    gpu = gpu_of(program.gpu)

    def changed(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            replace(op, kernels=tuple(change(one, gpu) for one in op.kernels),
                    parts=changed(op.parts)) for op in ops
        )  # fmt: skip

    return replace(program, forward=changed(program.forward), backward=changed(program.backward))


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


def link(name: str) -> Fault:
    def slow_link(program: Program, strength: float) -> Program:
        """The ranks talk over a slower link; the strength says nothing."""
        _ = strength
        return _parallel(program, link=name)

    return slow_link


FAULTS: dict[str, Fault] = {
    "slow-loader": slow_loader,
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
    "slow-link": link("pcie"),
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
    "odd-gemm": odd_gemm,
    "slow-softmax": slow_softmax,
    "fp32": fp32,
    "lead": lambda program, strength: _trouble(
        program, lead_us=strength * program.step_us() * program.steps
    ),
    "lone-gap": lambda program, strength: _trouble(
        program, gap_us=strength * program.step_us() * program.steps
    ),
    "no-gpu": lambda program, strength: replace(program, on_gpu=False),
}  # fmt: skip
"""Name → change of a program; applied in this order."""

CAUSES: dict[str, frozenset[str]] = {
    name: frozenset(causes.split())
    for name, causes in {
        "slow-loader": "input-bound", "slow-workers": "input-bound",
        "item-step": "sync-bound", "poll-step": "sync-bound", "item-layer": "sync-bound",
        "event-layer": "sync-bound",
        "poll-layer": "sync-bound", "slow-python": "host-bound", "eager": "launch-bound",
        "prepare": "host-bound", "finish": "host-bound", "uncached": "allocator-bound",
        "start-up": "host-bound-start-up", "pageable": "copy-bound", "offload": "copy-bound",
        "no-overlap": "communication-bound", "slow-link": "communication-bound",
        "small-reduces": "communication-bound", "late-host": "rank-skew",
        "late-gpu": "rank-skew", "side-stream": "dependency-wait", "stall": "device-stall",
        "odd-gemm": "compute-bound", "slow-softmax": "memory-bound", "fp32": "compute-bound",
        "lead": "host-bound-start-up host-bound", "lone-gap": "host-bound", "no-gpu": "cpu-only",
    }.items()
}  # fmt: skip
