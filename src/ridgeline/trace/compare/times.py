"""What one trace brings to a comparison, small enough to travel and to keep a thousand of them.

Times are of GPU work where there is any, else the operators' own time on the host. Work belongs to
the path of operators around its launch. Work whose launch the trace does not hold (the rest of the
iteration before) goes where kernels of its name go otherwise, in the same order and proportions;
what no operator launches (kernels of a graph) is told by its class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Trace
from ridgeline.trace.compare.noise import Numbers, TimeError, error_of_sum, joint_error
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.intervals import measure, union
from ridgeline.trace.kernel_names import KERNEL_CLASSES, kernel_classes
from ridgeline.trace.nesting import own_time
from ridgeline.trace.profiler_steps import profiler_steps
from ridgeline.trace.roofline.operator_inputs import operator_inputs
from ridgeline.trace.sorting import distinct, each
from ridgeline.trace.time.operators import operator_of_gpu, operator_tree

Path = tuple[str, ...]
"""Names of operators from the outermost in."""

NO_OPERATOR = "(no operator)"
_NO_WORK = re.compile(r"ProfilerStep\s*#\d+")
"""Ranges that old traces write as operators, one name for each."""
_UNKNOWN_PART = 0.1
"""Share of a sum whose error may be unknown, before the sum's is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTimes:
    """How often something was called, how long it ran in all, and how far that may be off."""

    count: int = 0
    total_us: float = 0.0
    error: TimeError | None = None

    @property
    def mean_us(self) -> float:
        """The mean time of one call."""
        return self.total_us / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """The calls of operators on one path, and the GPU work that they launch themselves."""

    times: WorkTimes = field(default_factory=WorkTimes)
    kernels: dict[str, float] = field(default_factory=dict)
    """GPU time by the kernel's name."""
    shapes: dict[str, int] = field(default_factory=dict)
    """Calls by the sizes of their inputs; empty where the trace does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """What one trace brings to the comparison."""

    file: str
    rank: int | None
    device: str | None
    """What the trace calls its GPU; None where it names none, or several."""
    on_gpu: bool
    """Is it GPU time that is compared?"""
    kernels: dict[str, WorkTimes]
    classes: dict[str, WorkTimes]
    """GPU work by class of kernel."""
    operators: dict[Path, OperatorWork]
    following: dict[tuple[str, str], int]
    """How often an outermost operator with work comes right after another, on one thread."""
    step_lengths_us: Floats
    """The lengths of whole profiler steps, from start to start."""
    window_us: float
    """0 when there is nothing in it."""
    noise: TimeError | None
    """Error of the window."""
    idle_us: float


def rank_times(trace: Trace, *, by: str = "operator") -> RankTimes:
    """The times of one trace, its operators told apart by `operator` or also by `shape`."""
    gpu, host = trace.gpu, trace.host
    rows, parents = operator_tree(trace)
    paths = _operator_paths(trace, by)
    on_gpu = bool(len(gpu))
    if on_gpu:
        places = operator_of_gpu(trace, rows)
        starts, durations, names = gpu.start_us, gpu.duration_us, gpu.name
    else:
        places = np.arange(len(rows))
        starts, durations, names = (
            host.start_us[rows],
            own_time(parents, host.duration_us[rows]),
            host.name[rows],
        )
    like = _numbered(names, gpu.blocks) if on_gpu else names.astype(np.int64)
    window, noise = _window(starts, starts + durations, like)
    kernels, classes = _kernels(trace, like) if on_gpu else ({}, {})
    return RankTimes(
        file=trace.file,
        rank=trace.rank,
        device=_device(trace),
        on_gpu=on_gpu,
        kernels=kernels,
        classes=classes,
        operators=_operators(trace, paths, places, durations, names),
        following=_following(trace, places),
        step_lengths_us=np.diff(np.array([step.start_us for step in profiler_steps(trace)])),
        window_us=window,
        noise=noise,
        idle_us=_idle(trace),
    )


def sum_of_times(parts: Iterable[WorkTimes]) -> WorkTimes:
    """Several together; the error is known when that of nearly all of the time is."""
    given = [part for part in parts if part.count]
    total = sum(part.total_us for part in given)
    known = [part.error for part in given if part.error is not None]
    told = sum(part.total_us for part in given if part.error is not None)
    error = joint_error(known) if told >= (1 - _UNKNOWN_PART) * total else None
    return WorkTimes(count=sum(part.count for part in given), total_us=total, error=error)


def sum_of_work(parts: Iterable[OperatorWork], calls: int | None = None) -> OperatorWork:
    """Several paths together; `calls` where they are parts of so many calls of one operator."""
    given = list(parts)
    times = sum_of_times(part.times for part in given)
    if calls is not None:
        times = WorkTimes(count=calls, total_us=times.total_us, error=times.error)
    kernels: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    for part in given:
        kernels.update(part.kernels)
        shapes.update(part.shapes)
    return OperatorWork(times=times, kernels=dict(kernels), shapes=dict(shapes))


def _numbered(names: Numbers, blocks: Ints) -> Ints:
    """One number for each pair of name and grid."""
    _, grids = np.unique(blocks, return_inverse=True)
    pairs: Ints = names.astype(np.int64) * (int(grids.max(initial=0)) + 1) + grids
    return pairs


def _window(starts: Floats, ends: Floats, like: Ints) -> tuple[float, TimeError | None]:
    """From the first start to the last end, and the error of that, from the spans between starts.

    A span is held against those with the same work and the same next work, else the same work.
    """
    if not len(starts):
        return 0.0, None
    order = np.argsort(starts, kind="stable")
    starts, like, last = starts[order], like[order], float(ends.max())
    _, work = np.unique(like, return_inverse=True)
    following = np.append(work[1:], work.max() + 1)
    pairs = work * (int(work.max()) + 2) + following
    return last - float(starts[0]), error_of_sum(np.diff(starts, append=last), (pairs, work))


def _kernels(trace: Trace, like: Ints) -> tuple[dict[str, WorkTimes], dict[str, WorkTimes]]:
    """GPU work by name, and by class."""
    names, durations = trace.gpu.name, trace.gpu.duration_us
    by_name = {
        trace.names[name]: _work_times(durations[rows], (like[rows], names[rows]))
        for name, rows in _parts(names)
    }
    by_class = {
        KERNEL_CLASSES[kind]: _work_times(durations[rows], (like[rows], names[rows]))
        for kind, rows in _parts(kernel_classes(trace))
    }
    return by_name, by_class


def _work_times(
    durations: Floats, groups: Sequence[Numbers], count: int | None = None
) -> WorkTimes:
    """Calls in order of time: as many as there are durations, unless one has several."""
    return WorkTimes(
        count=len(durations) if count is None else count,
        total_us=float(durations.sum()),
        error=error_of_sum(durations, groups),
    )


def _parts(numbers: Numbers) -> list[tuple[int, Ints]]:
    """The rows that share a number, for each number, in the order of rows."""
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    used, heads = np.unique(numbers[order], return_index=True)
    return list(zip(used.tolist(), np.split(order, heads[1:]), strict=True))


def _device(trace: Trace) -> str | None:
    used = set(trace.gpu.device.tolist())
    names = {device.name for device in trace.devices if device.index in used}
    return names.pop() or None if len(names) == 1 else None


def _idle(trace: Trace) -> float:
    gpu, idle = trace.gpu, 0.0
    for _, rows in _parts(gpu.device):
        start = gpu.start_us[rows]
        end = start + gpu.duration_us[rows]
        idle += float(end.max() - start.min()) - measure(union(start, end))
    return idle


# -- operators -------------------------------------------------------------------------------------


def _operator_paths(trace: Trace, by: str) -> tuple[Ints, list[Path]]:
    """The number of each operator's path, and the paths."""
    rows, parents = operator_tree(trace)
    host, names = trace.host, trace.names
    ranges = _ranges(trace)
    paths: list[Path] = [()]
    known: dict[tuple[int, int, int], int] = {}
    numbers = np.zeros(len(rows) + 1, np.int64)  # the last one answers for ABSENT
    found = numbers.data
    shapes = host.shape[rows] if by == "shape" else np.full(len(rows), ABSENT, np.int32)
    called = zip(each(host.name[rows]), each(shapes), each(parents), strict=True)
    for place, (name, shape, parent) in enumerate(called):
        around = found[parent]
        key = (around, name, shape)
        number = known.get(key)
        if number is None:
            number = around
            if name not in ranges:
                own = names[name] if shape == ABSENT else f"{names[name]} {_sizes(trace, shape)}"
                number = len(paths)
                paths.append((*paths[around], own))
            known[key] = number
        found[place] = number
    return numbers[:-1], paths


def _ranges(trace: Trace) -> set[int]:
    """Names of ranges that are no operators."""
    return {number for number, name in enumerate(trace.names) if _NO_WORK.match(name)}


def _sizes(trace: Trace, shape: int) -> str:
    return sizes_of(trace.shapes[shape])


def sizes_of(shapes: str) -> str:
    """The sizes of the inputs that are tensors, as written beside an operator.

    >>> sizes_of('[[[128, 64], [64, 32], []], ["float", "float", "Scalar"]]')
    '128x64, 64x32'
    """
    inputs = operator_inputs(shapes)
    dims = [] if inputs is None else [one for one in inputs.dims if one]
    return ", ".join("x".join(map(str, one)) for one in dims)


def _operators(
    trace: Trace,
    paths: tuple[Ints, list[Path]],
    places: Ints,
    durations: Floats,
    names: Numbers,
) -> dict[Path, OperatorWork]:
    """The work of each path that has some of its own."""
    number = paths[0]
    used = {path: place for place, path in enumerate(paths[1])}
    owner = np.where(places != ABSENT, number[places] if len(number) else ABSENT, ABSENT)
    calls: Counter[int] = Counter()
    shapes: dict[int, Counter[int]] = {}
    rows, _ = operator_tree(trace)
    with_work = distinct(places[places != ABSENT])
    told = trace.host.shape[rows[with_work]].tolist()
    for path, shape in zip(number[with_work].tolist(), told, strict=True):
        calls[path] += 1
        if shape != ABSENT:
            shapes.setdefault(path, Counter())[shape] += 1
    seen = np.bincount(owner[owner != ABSENT], minlength=len(used))
    if len(trace.gpu):
        owner = _with_unlaunched(trace, owner, used)
    listed = list(used)
    found = {}
    for path, own in _parts(owner):
        each = names[own]
        # Work that was not seen launched is of as many calls as the rest of its path.
        count = len(own)
        if path < len(seen) and seen[path]:
            count = round(calls[path] * len(own) / int(seen[path]))
        found[listed[path]] = OperatorWork(
            times=_work_times(durations[own], (each,), count),
            kernels={
                trace.names[name]: float(durations[own[part]].sum()) for name, part in _parts(each)
            },
            shapes=_by_sizes(trace, shapes.get(path, {})),
        )
    return found


def _by_sizes(trace: Trace, counted: Mapping[int, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for shape, count in counted.items():
        found[_sizes(trace, shape)] += count
    return dict(found)


def _with_unlaunched(trace: Trace, owner: Ints, used: dict[Path, int]) -> Ints:
    """Give work without a launch to the paths that its name is launched from, or to its class."""
    gpu, owner = trace.gpu, owner.copy()
    launched = launch_rows(trace) != ABSENT
    seen = np.flatnonzero(owner != ABSENT)
    paths = {name: owner[seen[part]] for name, part in _parts(gpu.name[seen])}
    lost = np.flatnonzero((owner == ABSENT) & ~launched)
    for name, part in _parts(gpu.name[lost]):
        if name in paths:
            owner[lost[part]] = np.resize(paths[name], len(part))
    untold = np.flatnonzero(owner == ABSENT)
    for kind, part in _parts(kernel_classes(trace)[untold]):
        place = (NO_OPERATOR, KERNEL_CLASSES[kind])
        owner[untold[part]] = used.setdefault(place, len(used))
    return owner


def _following(trace: Trace, places: Ints) -> dict[tuple[str, str], int]:
    """Pairs of outermost operators with work that follow each other on a thread."""
    rows, parents = operator_tree(trace)
    host, names = trace.host, trace.names
    ranges = _ranges(trace)
    outermost = np.arange(len(rows))
    found, above, own = outermost.data, parents.data, host.name[rows].data
    for place in range(len(rows)):
        parent = above[place]
        if parent != ABSENT and own[parent] not in ranges:
            found[place] = found[parent]
    used = distinct(outermost[places[places != ABSENT]])
    numbers, threads = host.name[rows[used]], host.thread[rows[used]]
    # The tree goes by thread, then by start.
    same = threads[1:] == threads[:-1]
    pairs = Counter(zip(numbers[:-1][same].tolist(), numbers[1:][same].tolist(), strict=True))
    return {(names[a], names[b]): count for (a, b), count in pairs.items()}
