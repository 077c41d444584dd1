"""What a measured script is made of: models, optimizers, loaders, settings, habits of its loop.

"Per step" figures are means over the window in which they were seen.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place in the user's code."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    convolves: list[int] = []
    """Dimensions that its convolutions go over: 1 for series, 2 for images, 3 for volumes."""
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


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    peer_wait_seconds: float = 0.0
    """Time without a core of the threads that compute beside it, on average; 0 in records of before
    it was noted."""
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


HabitName = Literal[
    "gc_collect",
    "empty_cache",
    "save",
    "retain_graph",
    "gradient",
    "evaluation",
    "no_grad_in_training",
    "recompute",
    "math_attention",
    "coordinate_product",
    "towards_loss",
    "channels_first_convolution",
    "pageable_copy",
    "collective",
    "argument_check",
    "ode_adjoint",
    "sde_adjoint",
]
"""What is counted of a script's loop:

- `gc_collect`: explicit calls of `gc.collect()`
- `empty_cache`: calls of `torch.cuda.empty_cache()`
- `save`: calls of `torch.save`
- `retain_graph`: backwards with `retain_graph=True`
- `gradient`: calls of `torch.autograd.grad` (penalties, second derivatives, `torch.func`)
- `evaluation`: forwards without gradients in a training script
- `no_grad_in_training`: those of them whose model is in training mode
- `recompute`: checkpointed forwards that ran again during backward
- `math_attention`: unfused attention (explicit softmax between two matmuls)
- `coordinate_product`: products of a sparse matrix that is kept as coordinates (COO)
- `towards_loss`: operators that autograd notes outside of any module's call: the loss, or a model
  that is called by another method than `forward`
- `channels_first_convolution`: convolutions whose input is not stored channels-last
- `pageable_copy`: host-to-device copies out of memory that is not pinned
- `collective`: gradient synchronisations (bucket flushes count once)
- `argument_check`: distributions of `torch.distributions` that check parameters or a value because
  that is the default
- `ode_adjoint`, `sde_adjoint`: differential equations that torchdiffeq or torchsde solve a second
  time, backwards, for gradients
"""


class Habit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a script was counted to do in its loop, per step."""

    calls: float = 0.0
    """How often, per step."""
    seconds: float = 0.0
    """What that took, per step; 0 where it was not timed."""
    bytes: float = 0.0
    """What was moved by it, per step and rank; 0 where that has no meaning."""
    site: Site | None = None
    """The line of the script that did it last, where that is known."""


NEVER_SEEN = Habit()
