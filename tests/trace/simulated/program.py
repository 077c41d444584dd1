"""What a simulated program is: operators with kernels, a host's speed, copies, collectives.

Everything is a value; a fault is a changed value (`faults.py`). Times are microseconds, sizes
bytes, FLOPs count a multiply-add as two.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

GOOD_COMPUTE = 0.70
"""Share of the arithmetic peak that a well-shaped large matmul reaches."""
GOOD_MEMORY = 0.85
"""Share of the memory peak that a streaming kernel reaches."""
KERNEL_FLOOR_US = 1.6
"""What a kernel that does nothing takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU and its links, a row of `gpus.toml`."""

    key: str
    name: str
    vendor: str
    capability: tuple[int, int]
    num_sms: int
    threads_per_sm: int
    memory_bytes: int
    flops_per_second: dict[str, float]
    bytes_per_second: float
    pinned_bytes_per_second: float
    pageable_bytes_per_second: float
    bus_bytes_per_second: dict[str, float]


@cache
def gpu_of(key: str) -> Gpu:
    rows = tomllib.loads((Path(__file__).parent / "gpus.toml").read_text())
    return Gpu(key=key, **rows[key])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its work, and how much of its roof it reaches."""

    sort: str
    """Row of `names.toml`."""
    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "bf16"
    efficiency: float | None = None
    """Share of its roof; None for what a good kernel reaches."""
    blocks: int = 4096

    def bound(self, gpu: Gpu) -> str:
        """`compute` or `memory`: which roof is the lower one."""
        arithmetic = self.flops / gpu.flops_per_second[self.dtype]
        return "compute" if arithmetic > self.bytes / gpu.bytes_per_second else "memory"

    def roof_us(self, gpu: Gpu) -> float:
        arithmetic = self.flops / gpu.flops_per_second[self.dtype]
        return 1e6 * max(arithmetic, self.bytes / gpu.bytes_per_second)

    def time_us(self, gpu: Gpu) -> float:
        good = GOOD_COMPUTE if self.bound(gpu) == "compute" else GOOD_MEMORY
        # A grid that leaves SMs empty cannot pull all of the memory's rate nor all arithmetic.
        filled = min(1.0, self.blocks / gpu.num_sms)
        share = (self.efficiency or good) * filled
        return KERNEL_FLOOR_US + self.roof_us(gpu) / share


@dataclass(frozen=True, slots=True)
class Op:
    """An operator as the host runs it: its inputs, the operators inside it, its kernels."""

    name: str
    kernels: tuple[Kernel, ...] = ()
    dims: tuple[tuple[int, ...], ...] = ()
    """Sizes of its arguments; empty for one that is no tensor."""
    dtype: str = "bf16"
    values: tuple[str, ...] = ()
    """Arguments that are no tensors, as Kineto prints them."""
    parts: tuple[Op, ...] = ()
    """Operators inside it."""
    layer: int = -1
    """The layer that it belongs to; -1 for none."""
    gradient_bytes: float = 0.0
    """Parameter gradients that are ready after it (backward operators of data-parallel runs)."""
    collective: Collective | None = None
    """A collective in the main stream (tensor and expert parallelism), in place of kernels."""

    def all_kernels(self) -> tuple[Kernel, ...]:
        """Its own and those of its parts."""
        return self.kernels + tuple(one for part in self.parts for one in part.all_kernels())


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over all ranks."""

    kind: str
    """Row of `names.toml`."""
    operation: str
    """As torch's metadata names it: `allreduce`, `_allgather_base`, …"""
    bytes: float
    steps: int = 1
    """How often the ring is gone around: 2 for an all-reduce, 1 for the rest."""

    def time_us(self, gpu: Gpu, link: str, ranks: int) -> float:
        """Latency plus traffic over the bus (NCCL's bus bandwidth, so 2(n-1)/n of the bytes)."""
        share = self.steps * (ranks - 1) / ranks
        latency = {"nvlink": 12.0, "pcie": 20.0, "network": 40.0}[link] + 2.0 * ranks
        return latency + 1e6 * share * self.bytes / gpu.bus_bytes_per_second[link]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """How fast the host is: means of lognormal times."""

    dispatch_us: float = 8.0
    """Time of an operator outside its launches."""
    launch_us: float = 4.5
    python_us: float = 5.0
    """Python between two operators."""
    sigma: float = 0.25
    slow_python_us: float = 0.0
    """More Python before each operator, in a function of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Where batches come from: in the launching thread, or from workers ahead of it."""

    batch_us: float = 0.0
    """Work for one batch, on one core."""
    workers: int = 0
    prefetch: int = 2
    bytes: float = 0.0
    pinned: bool = True
    annotated: bool = True
    """torch's DataLoader, which the profiler names; else a generator of the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the ranks work together."""

    ranks: int = 1
    kind: str = ""
    """`ddp`, `fsdp`, `pipeline`, `ring`, or empty: collectives stand in the operators."""
    message_bytes: float = 0.0
    """What a stage of a pipeline, or a rank of a ring, sends at once."""
    schedule: str = "gpipe"
    """Of a pipeline: `gpipe`, or `1f1b`."""
    link: str = "nvlink"
    bucket_bytes: float = 25e6
    overlap: bool = True
    each_pass: bool = False
    """Gradients are sent after each of a step's passes, not after the last one."""
    pieces: int = 1
    """Tensors that an operator's gradient consists of; each is sent by itself where they do not
    fill a bucket."""
    dtype_bytes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Where the host waits for the GPU, beyond the end of the run."""

    per: str = ""
    """`step`, `layer` (every forward layer) or empty."""
    by: str = "item"
    """`item`, `event` (cudaEventSynchronize), `poll` (cudaEventQuery in a loop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What happens once inside the window: module loads, the pool's cudaMallocs, a handle."""

    module_us: float = 0.0
    """First launch of each kernel takes this much longer."""
    malloc_us: float = 0.0
    """One cudaMalloc of the pool."""
    mallocs: int = 0
    handle_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Faults that are no property of a healthy program."""

    prepare_us: float = 0.0
    """Host work at the start of every step."""
    finish_us: float = 0.0
    """Host work at the end of every step, after its last launch."""
    frees_per_step: int = 0
    """cudaMalloc/cudaFree pairs of a switched-off caching allocator."""
    copies_per_step: int = 0
    """Pageable host-to-device copies of `copy_bytes`, from the launching thread."""
    copy_bytes: float = 0.0
    offload_bytes: float = 0.0
    """Moved out and back in every step, while nothing else can run."""
    late_rank: int = -1
    late_host_us: float = 0.0
    late_compute: float = 1.0
    """Factor on the kernels of the late rank."""
    side_us: float = 0.0
    """A kernel of one block on a side stream in every step, which the main stream waits for."""
    stall_us: float = 0.0
    stall_steps: tuple[int, ...] = ()
    """Steps in which the device does nothing for `stall_us` though work is queued."""
    lead_us: float = 0.0
    """Host work in the window before anything is launched."""
    gap_us: float = 0.0
    """Host work in the middle of one step, once."""
    module_us: float = 0.0
    """The first launch of a kernel that only one step in the middle needs, inside its call."""
    side_copy_bytes: float = 0.0
    """A pinned copy on a side stream in every step, which the main stream waits for."""
    small_copies: int = 0
    """Pinned copies of a few numbers, one after the other, at the start of every step."""
    pause_us: float = 0.0
    """The host stands still in the middle of every forward pass, in nothing that is recorded."""
    compile_us: float = 0.0
    """torch.compile compiles again, once, in the middle of the run."""
    host_optimizer_us: float = 0.0
    """The optimizer works on the host: gradients go out, weights come in."""
    host_optimizer_bytes: float = 0.0
    save_bytes: float = 0.0
    """Weights go to the host and are written, once, in the middle of the run."""
    save_us: float = 0.0
    slower_from: int = -1
    """From this step on kernels take `slower_by` times as long: arithmetic at lower clocks, and a
    third of it for what waits for memory."""
    slower_by: float = 1.0
    slice_us: float = 0.0
    """Another process has the GPU for so long, again and again."""
    slice_every_us: float = 0.0
    imbalance: float = 0.0
    """Ranks have more and less to compute than the mean by up to this, anew in every step."""
    stream_copy_bytes: float = 0.0
    """A pinned copy on the stream of the kernels, at the start of every step."""
    evaluations: int = 0
    """Forward passes in the middle of the run, without backward passes."""
    late_message: int = -1
    """The collective of this number takes `late_message_us` longer."""
    late_message_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and the machine that it runs on."""

    name: str
    gpu: str
    steps: int
    forward: tuple[Op, ...]
    passes: int = 1
    """Forward and backward passes whose gradients a step adds up."""
    warm: int = 0
    """Steps before those that the profiler records; they count among `steps`."""
    backward: tuple[Op, ...] = ()
    optimizer: tuple[Op, ...] = ()
    host: Host = field(default_factory=Host)
    loader: Loader | None = None
    parallel: Parallel = field(default_factory=Parallel)
    stops: Stops = field(default_factory=Stops)
    start_up: StartUp = field(default_factory=StartUp)
    trouble: Trouble = field(default_factory=Trouble)
    options: dict[str, Any] = field(default_factory=dict)
    """What its workload was built with: a fault may build it again."""
    graph: bool = False
    """Forward is one launch of a captured graph."""
    watchdog: bool = False
    """A thread that polls events in the background, as NCCL's does; it costs nothing."""
    on_gpu: bool = True

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.forward + self.backward + self.optimizer

    def step_us(self) -> float:
        """GPU time of the kernels of one step, without collectives."""
        gpu = gpu_of(self.gpu)
        return sum(kernel.time_us(gpu) for op in self.ops for kernel in op.all_kernels())
