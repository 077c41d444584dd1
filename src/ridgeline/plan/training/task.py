"""One planning task, and the searches that every kind of plan is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ridgeline import quantity
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.estimate import estimate_one
from ridgeline.cost.training.layouts import Layouts
from ridgeline.cost.training.workload import Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.enumeration import Space, chunks, skeletons
from ridgeline.plan.training.search import Found, judge_of, search
from ridgeline.plan.training.trained import WHOLE, Trained, workload_of
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout, Offload, Precision, Schedule
from ridgeline.records.plan import Objective
from ridgeline.records.recipe_compression import RecipeAdapter

CHUNK = 8192
"""Layouts judged at once: their arrays stay in a core's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """What is to be trained, and on what."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    global_batch: int
    precisions: tuple[Precision, ...]
    coefficients: Coefficients
    thorough: bool = True
    """Whether everything is tried, or only what is usual; see `Space`."""
    schedules: tuple[Schedule, ...] = ("1f1b", "interleaved")
    offload: Offload | None = None
    """How every layout is offloaded; None: as much as it takes to fit."""
    trained: Trained = WHOLE

    def space(self, widest_tensor: int) -> Space:
        """The layouts to look at."""
        return Space(
            model=self.model,
            num_devices=self.cluster.num_devices,
            widest_tensor=widest_tensor,
            global_batch=self.global_batch,
            seq=self.workload.seq,
            capacity_bytes=float(self.cluster.device.memory.usable_bytes),
            precisions=self.precisions,
            thorough=self.thorough,
            domain_size=self.cluster.domain_size,
            schedules=self.schedules,
            data_ranks_alone=self.trained.shards_alone(self.workload.stack.name),
        )

    def on(self, cluster: Cluster) -> TrainingTask:
        """The same task elsewhere."""
        coefficients = self.coefficients
        if cluster.device.architecture != self.cluster.device.architecture:
            coefficients = coefficients_for(cluster.device)
        return replace(self, cluster=cluster, coefficients=coefficients)

    def adapted(self) -> TrainingTask:
        """The same task with adapters beside weights in four bits, in place of the weights."""
        trained = Trained(adapter=RecipeAdapter(kind="qlora"))
        software = self.workload.stack.name
        workload = workload_of(
            self.model, seq=self.workload.seq, software=software, trained=trained
        )
        return replace(self, workload=workload, trained=trained)

    def sized(self, num_devices: int) -> TrainingTask:
        """The same task on so many devices of the same kind."""
        return replace(self, cluster=replace(self.cluster, num_devices=num_devices))

    def estimate(self, layout: Layout) -> Estimate:
        """The full record of one layout."""
        return estimate_one(self.model, self.cluster, self.workload, layout, self.coefficients)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """What the search of a task found, and how far it had to reach."""

    found: Found
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether any layout does."""
        return len(self.found.families) > 0

    @property
    def best(self) -> Layout:
        """The best layout that was found."""
        return self.found.families.layouts.at(0)

    @property
    def step_seconds(self) -> float:
        """The step time of the best layout."""
        return float(self.found.families.step_seconds[0])


def find(task: TrainingTask, objective: Objective = "time") -> SearchOutcome:
    """Search a task; reach for tight memory and tensor parallelism across domains only if needed.

    Raises InputError when no layout is valid at all; when none fits, `SearchOutcome.fits` is false.
    """
    domain = min(task.cluster.domain_size, task.cluster.num_devices)
    everywhere = task.cluster.num_devices
    attempts = [(domain, False, ()), (domain, True, (_TIGHT,))]
    if everywhere > domain:
        attempts += [(everywhere, False, (_WIDE,)), (everywhere, True, (_WIDE, _TIGHT))]
    outcome: SearchOutcome | None = None
    for widest, tight, notes in attempts:
        space = task.space(widest)
        if not skeletons(space):
            continue
        judge = judge_of(task.model, task.cluster, task.workload, task.coefficients, tight=tight)
        found = search(_pieces(space), judge, objective, task.offload)
        outcome = SearchOutcome(found=found, notes=notes)
        if outcome.fits:
            return outcome
    if outcome is None:
        raise InputError(_no_layout(task))
    return outcome


_TIGHT = "every layout that runs is tight in memory: fragmentation may still exhaust it"
_WIDE = "tensor parallelism had to leave the fast domain"


def nothing_fits(task: TrainingTask, outcome: SearchOutcome) -> str:
    """The message when nothing fits: what is missing at the leanest layout, and what would fit."""
    peak = float(outcome.found.nearest.peak_bytes[0])
    capacity = float(task.cluster.device.memory.usable_bytes)
    if peak <= capacity:
        return (
            f"the cost model has no step time for {task.model.name} ({task.model.kind}) in"
            f" {', '.join(task.precisions)} on {task.cluster.device.name}: it knows language"
            " models on devices with a published rate of that dtype"
        )
    layout = outcome.found.nearest.layouts.at(0)
    what = f"{task.cluster.num_devices}x{task.cluster.device.name}"
    line = (
        f"{task.model.name} does not fit on {what}: even the leanest layout (tp {layout.tp},"
        f" pp {layout.pp}, cp {layout.cp}, zero {layout.zero} over {layout.fsdp},"
        f" {layout.recompute} recompute, offload {layout.offload}) needs {quantity.memory(peak)}"
        f" of {quantity.memory(capacity)}, {quantity.memory(peak - capacity)} too much"
    )
    enough = _enough_devices(task)
    if enough is None:
        line += "; more devices of this kind do not help: take ones with more memory"
    else:
        line += f"; {enough}x{task.cluster.device.name} would fit"
    if task.trained.adapter is not None:
        return line
    adapted = task.adapted()
    if task.model.is_causal_language_model and find(adapted).fits:
        line += ", and on these what --adapter qlora trains in place of the weights"
    if task.offload is None and find(replace(task, offload="all-on-disk")).fits:
        line += ", and on these, slowly, what --offload all-on-disk keeps on NVMe"
    return line


def _enough_devices(task: TrainingTask, most: int = 65_536) -> int | None:
    """The first doubling of the devices on which something fits."""
    quick = replace(task, thorough=False)
    count = task.cluster.num_devices * 2
    while count <= most:
        larger = quick.sized(count)
        space = larger.space(min(larger.cluster.domain_size, count))
        if skeletons(space):
            judge = judge_of(larger.model, larger.cluster, larger.workload, larger.coefficients)
            if search(_pieces(space), judge, offload=task.offload).feasible:
                return count
        count *= 2
    return None


def _no_layout(task: TrainingTask) -> str:
    """The message when no layout is valid: why, and which global batch would do."""
    count = task.cluster.num_devices
    widest = min(task.cluster.domain_size, count)
    free = replace(task.space(widest), global_batch=0)  # 0: every number divides it
    sizes = sorted({skeleton.dp for skeleton in skeletons(free)})
    if not sizes:
        return (
            f"no layout puts {task.model.name} on {count} devices: neither its heads"
            f" ({task.model.heads}) nor its layers nor the sequence of {task.workload.seq} tokens"
            " can be split so; change the number of devices"
        )
    below = max((task.global_batch // dp * dp for dp in sizes), default=0)
    above = min(-(-task.global_batch // dp) * dp for dp in sizes)
    near = [str(batch) for batch in (below, above) if batch > 0]
    return (
        f"global batch {task.global_batch} cannot be split over {count} devices (data-parallel"
        f" sizes that the model allows: {', '.join(map(str, sizes[:6]))}"
        f"{', …' if len(sizes) > 6 else ''}); nearest that can: {' or '.join(near)}"
    )


def _pieces(space: Space) -> Iterator[Layouts]:
    return chunks(space, CHUNK)
