"""Where the time of a measured step went, what ran, what it held, and which settings were on.

All times are wall seconds of one training step (or one inference call) unless a field's name
says otherwise. "Per step" figures are means over the window in which they were seen.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.measurement import Distribution, Environment

PHASES = ("data", "copy", "forward", "backward", "optimizer", "communication", "other")
"""The phases of a step are exclusive and exhaustive: they sum to the step."""


class ProfilePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of a profile: immutable, and strict about unknown keys."""


class Site(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place in the user's code."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Operator(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator at one set of input shapes, per step."""

    name: str
    """The dispatcher's name, e.g. `aten::mm`."""
    shapes: str
    dtype: str
    """The dtype of its floating-point inputs, e.g. `float32`; empty when it has none."""
    phase: str
    calls: float
    seconds: float
    """Self time on the device that ran it."""
    flops: float
    bytes: float
    """Bytes of its inputs read and outputs written once (the least it could move)."""
    bound: str = ""
    """`compute`, `memory` or `overhead`: which limit on the roofline is the higher."""
    limit_seconds: float = 0.0
    """The least time the hardware allows: max(flops / peak, bytes / bandwidth)."""

    def input_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of its tensor inputs.

        >>> Operator(name="aten::mm", shapes="[2,3],[3,4]", dtype="", phase="forward",
        ...          calls=1, seconds=0, flops=0, bytes=0).input_shapes()
        [(2, 3), (3, 4)]
        """
        found = []
        for shape in self.shapes.replace("],[", "]|[").split("|"):
            sizes = shape.strip("[]")
            if sizes:
                found.append(tuple(int(size) for size in sizes.split(",")))
        return found


class SyncPoint(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where the host waits for the device, or copies out of it."""

    kind: str
    """`item`, `to-cpu`, `print`, `nonzero`, `synchronize`, …"""
    site: Site
    calls: float
    seconds: float


class HotLine(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the user's script that was on the stack when the host was sampled."""

    site: Site
    phase: str
    share: float
    """Fraction of the sampled time."""
    leaf: str
    """What it was calling at the bottom: `module.function`."""


class GraphBreak(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where `torch.compile` fell back to Python."""

    reason: str
    site: Site | None
    count: int


class MemorySplit(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor bytes alive at the peak, by what they are for."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    other_bytes: int


class MemoryPoint(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor bytes alive at a moment of the profiled step."""

    seconds: float
    bytes: int
    phase: str


class ModelFacts(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One outermost module that the script called."""

    name: str
    """The name of its class."""
    num_parameters: int
    num_parameter_tensors: int
    parameter_bytes: int
    num_trainable: int
    dtype: str
    device: str
    num_modules: int
    training: bool
    repeated_block: str | None
    """Class of the largest module repeated at least twice (a transformer layer)."""
    num_repeated: int
    has_convolutions: bool
    channels_last: bool
    has_batch_norm: bool = False
    """A part of it normalises by the statistics of the batch."""
    has_recurrent: bool
    has_dropout: bool
    has_attention: bool
    checkpointing: bool
    """A part of its forward was seen to run again inside backward; of compiled code, what its
    modules say of themselves."""
    compiled: bool
    scripted: bool = False
    """It, or a part of it, is a TorchScript program."""
    wrapper: str | None
    """`DistributedDataParallel`, `FullyShardedDataParallel`, … when wrapped."""
    ddp_find_unused: bool = False
    ddp_static_graph: bool = False
    ddp_bucket_view: bool = False
    forward_site: Site | None = None
    """Where the script calls it."""
    calls_per_step: float = 1.0
    float_outputs: list[bool] = []
    """Which of the tensors that it returns are of floating point: one for a bare tensor, several
    for a tuple; empty for anything else."""
    odd_dimensions: dict[str, int] = {}
    """Weight name → a matmul dimension that is not a multiple of 8."""


class OptimizerFacts(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One optimizer that the script stepped."""

    name: str
    num_parameter_tensors: int
    num_parameters: int
    fused: bool
    foreach: bool
    supports_fused: bool
    state_bytes: int
    steps_per_step: float
    """Times it stepped per measured step (several when optimizers alternate)."""
    site: Site | None
    """Where it was constructed."""
    step_site: Site | None
    zeroes_in_place: bool
    """Gradients were zeroed and kept instead of set to None."""


class LoaderFacts(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One DataLoader that the script iterated."""

    batch_size: int | None
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    dataset: str
    """Class of the dataset."""
    num_batches: int | None
    batch_bytes: int
    site: Site | None
    """Where it was constructed."""
    fetch_seconds: float | None
    """Mean time in which one batch is made, in a worker where there are workers; None: unseen."""
    wait_seconds: float
    """Mean time that the loop waited for a batch."""
    restarts: int
    """Times a new iterator was made while watching."""
    start_seconds: float
    """Mean time to the first batch of a new iterator."""
    padding_share: float = 0.0
    """Share of the batch that is one constant repeated to the end of the rows."""
    fetch_cpu_seconds: float | None = None
    """CPU time in `fetch_seconds`: less than half of it means that making a batch waits."""
    fetch_read_bytes: float = 0.0
    """What making a batch asks the system to read from files; 0 also where nothing counts it."""
    fetch_disk_bytes: float = 0.0
    """What of it came from a disk; the rest the system had in memory."""


class Settings(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Global switches as they stood while the steps were timed."""

    num_threads: int
    cpu_count: int
    matmul_precision: str
    autocast_dtype: str | None
    gradient_scaler: bool
    anomaly_detection: bool
    deterministic: bool
    cudnn_benchmark: bool
    autograd_profiler: bool
    gc_seconds: float
    """Per step, in Python's cyclic garbage collector."""
    records_gradients: bool = False
    """Forwards of an inference script ran with gradients enabled."""
    backward_site: Site | None
    torchscript_site: Site | None = None
    """Where the script last loaded, traced or scripted a TorchScript program, if it did."""
    forwards_per_step: float
    backwards_per_step: float
    graph_compiles: int
    recompiles: int
    """Compilations of a frame that was compiled before, while the timed steps ran."""
    compile_seconds: float
    """Spent compiling while the timed steps ran."""
    padding_share: float = 0.0
    """Share of the model's token ids that is one value repeated to the end of its row."""
    stated_sizes: dict[str, int] = {}
    """Where the script states a whole number under a name that speaks of batches or accumulation
    (`arguments:batch_size`, `constants:BATCH`) → the number."""
    cpu_seconds: float = 0.0
    """CPU time of the whole process per step, all threads."""
    cpu_wait_seconds: float = 0.0
    """Per step, in which the stepping thread could have run but got no core."""
    page_faults: float = 0.0
    """Pages of memory per step that the kernel had to find and clear first, without reading them
    from a disk."""
    kernel_seconds: float = 0.0
    """CPU time of the whole process per step inside the kernel, all threads; part of
    `cpu_seconds`."""

    def kernel_wall_seconds(self, step_seconds: float) -> tuple[float, float]:
        """Least and most of a step that its time in the kernel may have taken.

        All threads spend it side by side; or one does, while the others wait. What they compute
        takes its time anyway.
        """
        threads = max(1, min(self.num_threads, self.cpu_count))
        computing = max(0.0, self.cpu_seconds - self.kernel_seconds) / threads
        least = self.kernel_seconds / threads
        return least, max(least, min(self.kernel_seconds, step_seconds - computing))


_CROWDED = 1 / 3
"""Share of a step without a core."""

HabitName = Literal[
    "gc_collect",
    "empty_cache",
    "save",
    "retain_graph",
    "gradient",
    "evaluation",
    "recompute",
    "math_attention",
    "channels_first_convolution",
    "pageable_copy",
    "collective",
]
"""What is counted of a script's loop:

- `gc_collect`: explicit calls of `gc.collect()`
- `empty_cache`: calls of `torch.cuda.empty_cache()`
- `save`: calls of `torch.save`
- `retain_graph`: backwards with `retain_graph=True`
- `gradient`: calls of `torch.autograd.grad` (penalties, second derivatives, `torch.func`)
- `evaluation`: forwards without gradients in a training script
- `recompute`: checkpointed forwards that ran again during backward
- `math_attention`: unfused attention (explicit softmax between two matmuls)
- `channels_first_convolution`: convolutions whose input is not stored channels-last
- `pageable_copy`: host-to-device copies out of memory that is not pinned
- `collective`: gradient synchronisations (bucket flushes count once)
"""


class Habit(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a script was counted to do in its loop, per step."""

    calls: float = 0.0
    """How often, per step."""
    seconds: float = 0.0
    """What that took, per step; 0 where it was not timed."""
    bytes: float = 0.0
    """What was moved by it, per step and rank; 0 where that has no meaning."""
    site: Site | None = None
    """The line of the script that did it last, where that is known."""


class TailFacts(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slow ones among the timed steps: those that took half as long again as the median."""

    slow_steps: int
    excess_seconds: float
    """What they took beyond the median, all together."""
    early_share: float
    """Share of that in the first tenth of the timed steps: 0.1 where they are spread evenly."""
    phase_seconds: dict[str, float]
    """What each phase took beyond its own median in the slow steps, all together."""
    size_correlation: float | None
    """Spearman's, of a step's time with the tokens (or samples) in it, over the largest that ties
    among the sizes allow; null where all are of one size."""


class SideEffects(ProfilePart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a measured script would have left behind, and what kept it from doing so."""

    protection: str
    """How files were protected. `view`: it saw a copy-on-write view of the files. `copies`: old
    contents were put back."""
    files: int = 0
    """Files that it wrote, changed or removed; none of that lasts."""
    first_files: list[str] = []
    """Some of them, nearest to the working folder first."""
    unprotected: list[str] = []
    """A line for each file that may not be as it was."""
    offline: list[str] = []
    """Libraries that were kept from sending anything anywhere."""


class StepProfile(
    ProfilePart,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="record",
    tag="profile",
):
    """What one process measured of one script."""

    kind: str
    """Whether it is `training` or `inference`."""
    steps: int
    """Timed steps behind `step_seconds`."""
    step_seconds: Distribution
    phases: dict[str, Distribution]
    samples_per_second: float | None
    tokens_per_second: float | None
    peak_memory_bytes: int
    mfu: float | None
    """Model FLOPs per second over the probed matmul peak of the dtype that was used."""
    flops_per_step: float
    limit_seconds: float
    """The least one step could take: the sum of the operators' roofline limits."""
    limit_fraction: float
    """`limit_seconds` over the median step: 1 is the hardware's limit."""
    memory: MemorySplit
    memory_timeline: list[MemoryPoint]
    memory_growth_bytes_per_step: float
    operators: list[Operator]
    """The operators, most expensive first."""
    operator_calls: float
    """Operators dispatched per step."""
    small_operator_share: float
    """Share of the step in operators too small to pay for their dispatch."""
    sync_points: list[SyncPoint]
    hot_lines: list[HotLine]
    graph_breaks: list[GraphBreak]
    models: list[ModelFacts]
    """The models, largest first."""
    optimizers: list[OptimizerFacts]
    loaders: list[LoaderFacts]
    settings: Settings
    habits: dict[HabitName, Habit] = {}
    """What costs time or memory inside the loop, counted; what was not seen is absent."""
    losses: list[float]
    """By step from the first one that was seen: the sum of what its backwards began with, which
    is what its gradient is of."""
    gradient_norms: list[float]
    non_finite: int
    """Steps whose loss or gradients were not finite."""
    step_samples: list[float]
    """Seconds of each timed step, in order."""
    environment: Environment
    rank: int = 0
    world_size: int = 1
    warmup_steps: int = 0
    """Steps left out before the timed ones, until the step time was steady."""
    steady: bool = True
    """False when the steps ran out, or the budget, before the step time was steady."""
    warnings: list[str] = []
    device_memory_bytes: int = 0
    """What the device has; RAM when the model is on the CPU; 0 where it is not known."""
    tail: TailFacts | None = None
    """Null in records of before it was noted."""
    side_effects: SideEffects | None = None
    """Absent in records of before it was noted."""

    @property
    def crowded_share(self) -> float:
        """Share of a step, at most 1, in which its thread could have run but got no core."""
        mean = self.step_seconds.mean
        return min(1.0, self.settings.cpu_wait_seconds / mean) if mean else 0.0

    @property
    def is_crowded(self) -> bool:
        """Did the step wait for a core for so long that its times say little about the script?"""
        return self.crowded_share >= _CROWDED

    def habit(self, name: HabitName) -> Habit:
        """What was counted under this name; zeros where nothing was seen."""
        return self.habits.get(name, _NEVER)


_NEVER = Habit()
