"""Where the time of a measured step went, what ran, and what it held.

What the script itself is made of stands in `script_facts.py`.

All times are wall seconds of one training step (or one inference call) unless a field's name
says otherwise. "Per step" figures are means over the window in which they were seen.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.measurement import Distribution, Environment
from ridgeline.records.script_facts import (
    NEVER_SEEN,
    Habit,
    HabitName,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    Settings,
    Site,
)
from ridgeline.records.tagged import TaggedRecord

PHASES = ("data", "copy", "forward", "backward", "optimizer", "communication", "other")
"""The phases of a step are exclusive and exhaustive: they sum to the step."""


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class SyncPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where the host waits for the device, or copies out of it."""

    kind: str
    """`item`, `to-cpu`, `print`, `nonzero`, `synchronize`, …"""
    site: Site
    calls: float
    seconds: float


class UnusedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that calls models with gradients on, for gradients that nobody uses."""

    site: Site
    calls: float
    """Calls of models there, per step."""
    forward_share: float
    """Share of the time of all forwards, between 0 and 1."""
    in_backward: bool
    """Does a backward go through them, for weights that no optimizer steps?"""


class HotLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the user's script that was on the stack when the host was sampled."""

    site: Site
    phase: str
    share: float
    """Fraction of the sampled time."""
    leaf: str
    """What it was calling at the bottom: `module.function`."""


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where `torch.compile` fell back to Python."""

    reason: str
    site: Site | None
    count: int


class MemorySplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor bytes alive at the peak, by what they are for."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    other_bytes: int


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor bytes alive at a moment of the profiled step."""

    seconds: float
    bytes: int
    phase: str


_NODE_BYTES = 1024
"""A node of autograd with what it holds, and the tensor that it belongs to."""
_CROWDED = 1 / 3
"""Share of a step without a core."""


class TailFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class SideEffects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class StepProfile(TaggedRecord, frozen=True, kw_only=True, tag="profile"):
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
    unused_graphs: list[UnusedGraph] = []
    """The lines that record graphs for nobody, the longest first."""
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
        """Share of a step, at most 1, in which its thread could have run but got no core.

        Or those beside it, whose part of an operator it waits for, where they waited for longer.
        """
        mean = self.step_seconds.mean
        waited = max(self.settings.cpu_wait_seconds, self.settings.peer_wait_seconds)
        return min(1.0, waited / mean) if mean else 0.0

    @property
    def is_crowded(self) -> bool:
        """Did the step wait for a core for so long that its times say little about the script?"""
        return self.crowded_share >= _CROWDED

    @property
    def beside_seconds(self) -> float:
        """Seconds of a step in which threads beside its own computed, spun, or wanted a core."""
        settings = self.settings
        own = max(0.0, self.step_seconds.mean - settings.cpu_wait_seconds)
        return max(0.0, settings.cpu_seconds - own) + settings.peer_wait_seconds

    def kept_at_most_bytes(self, *phases: str) -> float:
        """What autograd could keep, at most, of the operators of these phases for a backward.

        All that they write, which is half of what they move where inputs and output are of a size,
        and for each its node and the heads of its tensors.
        """
        operators = [op for op in self.operators if op.phase in phases]
        return sum(op.bytes / 2 + op.calls * _NODE_BYTES for op in operators)

    def habit(self, name: HabitName) -> Habit:
        """What was counted under this name; zeros where nothing was seen."""
        return self.habits.get(name, NEVER_SEEN)
