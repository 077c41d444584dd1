"""What the conductor and a measured process say to each other, over a local socket.

    child                      conductor
    Hello            ───────►
                     ◄───────  Order(run 10 steps)
    Report(10 steps) ───────►               … the child waits at a step boundary
                     ◄───────  Order(run 3 steps, instrument="operators")
    Report(…)        ───────►
                     ◄───────  Order(stop)
                               … the child leaves at the boundary, the script's own
                               `except` and `finally` blocks do not run

Every message is one MessagePack document (JSON has no NaN, and a loss may be one); the
connection frames it. A process that ends by itself
sends a last Report with `ended=True`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.measure.calls.loop import CallSample
from ridgeline.records import (
    GraphBreak,
    HotLine,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    Settings,
    Site,
    SyncPoint,
    UnusedGraph,
)
from ridgeline.records.ledger import Options
from ridgeline.records.script_facts import Habit, HabitName

SOCKET_NAME = "conductor.sock"
STANDING_NAME = "standing.json"
"""The file of a session's folder that holds its `Standpoint`."""

Instrument = Literal["none", "operators", "profiler", "sampler"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what travels; strict about unknown keys."""


class Applied(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One technique that the child shall apply, with its options."""

    technique: str
    options: Options = {}


class Waits(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long calls of a model are no steps, in a script that has yet to train.

    Times are on the clock of `monotonic`, which all processes share.
    """

    since: float
    """When the script was started."""
    training_until: float
    """From then on they are, where they only evaluate."""
    step_until: float
    """From then on they are, although what they compute waits for a backward."""


class CallsAsSteps(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as a step, as runs of the script before have shown."""

    assumed: bool = False
    """Outermost calls are steps although the script constructs an optimizer."""
    few: bool = False
    """Each of them is one: there are too few to wait for eight."""
    repeats: int = 0
    """Each is made so often once more, on what it was given: there are too few to be timed."""
    model: int | None = None
    """Which of the modules that are called is the model, in the order of their first calls."""
    optimizer: int | None = None
    """Whose steps end a step of a training, in the order in which optimizers are made."""


class Session(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Written to the session folder before the child starts."""

    seed_offset: int = 0
    """Added to every seed that the script sets: 0 leaves the script's own randomness alone."""
    fix_seed: bool = False
    """Seed torch, random and numpy before the script's first line, for scripts that do not."""
    shake: float = 0.0
    """Disturb parameters and gradients by this relative size: what would rounding do?"""
    weighed_steps: int = 0
    """First steps whose gradients are weighed, for the comparison of two trainings."""
    calls: CallsAsSteps = CallsAsSteps()
    waits: Waits | None = None
    """When outermost calls begin to count as steps, where nothing trains; None: never."""
    stack: list[Applied] = []
    environment: dict[str, str] = {}
    """Variables that the stack wants set before the process loads any library."""
    saved_folder: str | None = None
    """Where to keep what the script's saves overwrite, for whoever puts it back; None: the
    conductor does, when it cuts the script short."""
    terminal: tuple[int, int] | None = None
    """Columns and lines of the user's terminal, where the script's output would go to one."""
    nvtx: bool = False
    """Whether phases and steps become NVTX ranges."""
    report: bool = True
    """Whether a conductor listens; False: apply the stack and run to the end without a
    conductor."""


class Updates(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What optimizers stepped by, in the first steps of a training."""

    norms: list[float] = []
    """Norm of all gradients, step by step."""
    tensors: list[int] = []
    """How many parameters had a gradient that is not zero, step by step."""
    settings: list[dict[str, float]] = []
    """What the groups say (`lr`, `weight_decay`, …): means over the `elements` that stepped."""
    short: bool | None = None
    """Do all weights fit in 16 bits? None: not looked at yet."""

    def and_then(self, later: Updates) -> Updates:
        """These, and those of the steps after them.

        >>> Updates(norms=[1.0], tensors=[2]).and_then(Updates(norms=[3.0], tensors=[2])).norms
        [1.0, 3.0]
        """
        return Updates(
            norms=self.norms + later.norms,
            tensors=self.tensors + later.tensors,
            settings=self.settings + later.settings,
            short=self.short if later.short is None else later.short,
        )


class Standpoint(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a script is that has not stepped yet; left in the session's folder."""

    where: str
    """The line of the user's, and its function."""
    calls: int
    """Outermost calls of a model so far."""
    has_begun: bool
    """A model was called, and may still run: the first step is under way."""
    compiles: bool
    """`torch.compile` is at work below that line."""
    listens: str
    """The address at which it waits for connections; empty: at none."""
    evaluates: bool = False
    """It trains, and runs forwards without gradients meanwhile."""
    idle_seconds: float = 0.0
    """For how long by now it has computed nothing, in any thread."""


class Hello(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first word of a process that has begun to step."""

    pid: int
    rank: int
    world_size: int
    device: str


class Order(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do next: `steps` steps under one instrument, then report; or leave."""

    action: Literal["run", "stop", "free"]
    steps: int = 0
    instrument: Instrument = "none"
    facts: bool = False
    """Read models, optimizers, loaders and switches into the report."""
    within_seconds: float | None = None
    """Report at the first boundary after so long, whatever is left to do."""
    calls: bool = False
    """Note what the process goes through in each step, for `Report.calls`."""
    period_seconds: float | None = None
    """From the begin of one noted step to that of the next; None: a closed loop."""


class StepTimes(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The times of one step: exclusive seconds per phase (they sum to `seconds`)."""

    seconds: float
    phases: dict[str, float]
    samples: int
    tokens: int
    begins_epoch: bool = False
    """A loader was asked for an iterator in it."""


class OperatorCall(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator at one set of shapes, summed over the instrumented steps."""

    name: str
    shapes: str
    dtype: str
    phase: str
    calls: int
    flops: float
    bytes: float
    seconds: float
    stalled_seconds: float = 0.0
    """What calls of this kind took beyond a multiple of their median: waiting for a core."""


class MemorySample(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor bytes alive, by category, at a moment of an instrumented step."""

    seconds: float
    phase: str
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        """All that is alive."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.other_bytes
        )


class Facts(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of the script's objects and switches at the time of the report."""

    kind: Literal["training", "inference"]
    models: list[ModelFacts]
    optimizers: list[OptimizerFacts]
    loaders: list[LoaderFacts]
    settings: Settings
    habits: dict[HabitName, Habit]
    """Counted since the last order, per step."""
    looked: dict[HabitName, Habit]
    """What only the instruments see, from their last window."""
    graph_breaks: list[GraphBreak]
    python: str
    torch: str
    device_name: str
    device_memory_bytes: int
    """Memory of the GPU, or the machine's RAM when the model is on the CPU."""


class Report(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happened since the last order."""

    steps: list[StepTimes]
    losses: list[float]
    updates: Updates = Updates()
    calls: list[CallSample] = []
    """Each step with what happened beside it, where the order asked for it."""
    instrument: Instrument = "none"
    """The one that was at work: an order may ask for one that this script does not allow."""
    gradient_norms: list[float] = []
    non_finite: int = 0
    operators: list[OperatorCall] = []
    profiler: list[OperatorCall] = []
    communication: dict[str, float] = {}
    """Profiler's seconds per step by collective, and `exposed`."""
    memory: list[MemorySample] = []
    memory_peak_bytes: int = 0
    """Highest tensor bytes alive in the instrumented steps; on CUDA the allocator's peak."""
    memory_growth_bytes_per_step: float = 0.0
    """Tensor bytes that every instrumented step left behind: steady training leaves none."""
    resident_bytes: int = 0
    """Resident memory of the process at the boundary."""
    cpu_seconds: float = 0.0
    """CPU time of the process over these steps, all its threads."""
    held_bytes: list[int] = []
    """What the C heap (tensors and autograd graphs of the CPU) and the GPU's allocator held at
    the end of each sampled step; empty where the C library does not tell."""
    input_bytes: list[int] = []
    """Tensors that the main model was given, at the end of the same steps."""
    collected_bytes: int = 0
    """Garbage in cycles among the last of these, which the collector had not come to yet."""
    sync_points: list[SyncPoint] = []
    unused_graphs: list[UnusedGraph] = []
    hot_lines: list[HotLine] = []
    facts: Facts | None = None
    applied: dict[str, str] = {}
    """Technique → what it changed; a technique that changed nothing is absent."""
    places: dict[str, list[Site]] = {}
    """Technique → the lines that it took effect at, where it says so."""
    refused: dict[str, str] = {}
    """Technique → why it changed nothing, where it says so."""
    main_model: int | None = None
    """Which of the modules that were called is the model, in the order of their first calls."""
    anchor: int | None = None
    """Which optimizer's steps end a step, in the order in which they were made."""
    preparing: dict[str, str] = {}
    """Technique that will take effect after some more steps → how far it is, in words."""
    forwards_seen: int = 0
    """Outermost forwards of the main model since the start."""
    ended: bool = False
    comes_in_parts: bool = False
    """The steps that follow are parts of one: a micro-batch each."""
    warnings: list[str] = []
