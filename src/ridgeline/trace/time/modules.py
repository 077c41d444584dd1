"""Where time goes by nn.Module, as a tree of the model: `module_times(trace)`.

torch writes a Python frame `nn.Module: Linear_3` around each call of a module, when it records with
`with_stack` (since 1.12). Calls of one module under the same modules are one node. GPU work belongs
to the innermost module that was open on the launching thread at the launch; work of autograd's
backward to the module of the forward operator that it differentiates (`backward.py`).
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace
from ridgeline.trace.host_calls import innermost_at, launch_rows, names_matching
from ridgeline.trace.nesting import (
    Nesting,
    Paths,
    heaviest,
    inclusive,
    merged_paths,
    nested,
    own_time,
    tree_order,
)
from ridgeline.trace.time.backward import forward_of
from ridgeline.trace.windows import RankRecord, host_window

_FRAME = re.compile(r"^nn\.Module: ")
_NUMBER = re.compile(r"_\d+$")
NO_MODULES = (
    "no nn.Module event in the trace; record it with torch.profiler's with_stack=True (torch 1.12"
    " or newer)"
)


class ModuleUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All calls of one module in one place of the model."""

    name: str
    """The class of the module and torch's number of it: `Linear_3`."""
    path: str
    """The names from the outermost module to this one, with `/` between them."""
    depth: int
    """How many modules are around it."""
    calls: int
    operators: int
    """Operators that were called inside, in any depth."""
    host_us: float
    """Host time of the forward calls, with the modules inside."""
    host_self_us: float
    """Host time without the modules inside."""
    forward_gpu_us: float
    """The time of the GPU work that was launched inside."""
    forward_gpu_self_us: float
    """GPU time without that of the modules inside."""
    backward_gpu_us: float
    """The time of the GPU work that backward did for its operators."""
    backward_gpu_self_us: float
    gpu_share: float
    """Forward and backward, of the time of all GPU work in the window."""


class ModuleClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All modules of one class, without the modules inside them."""

    name: str
    modules: int
    calls: int
    host_self_us: float
    forward_gpu_self_us: float
    backward_gpu_self_us: float
    gpu_share: float


class RankModules(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The modules of one rank's model."""

    window: str
    gpu_us: float
    """The time of all GPU work that was launched in the window."""
    gpu_outside_us: float
    """What of it belongs to no module: optimizer, loss, loading, gradients' sums, graph replays."""
    classes: list[ModuleClass]
    modules: list[ModuleUse]
    """The tree as it is read: each before those inside it, the most expensive of these first."""
    note: str | None
    """Why there is nothing, where there is nothing."""


def module_times(trace: Trace, window: str = "trace", *, top: int = 60) -> RankModules:
    """The `top` most expensive modules of a trace, and those around them."""
    host = trace.host
    low, high = host_window(trace, window)
    frames = names_matching(trace, _FRAME)[host.name] & (host.category == Category.PYTHON)
    nest = nested(trace, frames & (host.start_us >= low) & (host.start_us < high))
    calls = launch_rows(trace)
    launched = np.flatnonzero(calls != ABSENT)
    moments = host.start_us[calls[launched]]
    launched = launched[(moments >= low) & (moments < high)]
    times = trace.gpu.duration_us[launched]
    total = float(times.sum()) if window == "steps" else float(trace.gpu.duration_us.sum())
    forward, backward = _owners(trace, nest, frames, calls[launched])
    work = {
        "forward": _sums(forward, times, len(nest.rows)),
        "backward": _sums(backward, times, len(nest.rows)),
    }
    classes, modules = _told(trace, nest, frames, work, total, top)
    return RankModules(
        file=trace.file,
        rank=trace.rank,
        window=window,
        gpu_us=total,
        gpu_outside_us=max(0.0, total - float(sum(own.sum() for own in work.values()))),
        classes=classes,
        modules=modules,
        note=None if len(nest.rows) else NO_MODULES,
    )


def _owners(trace: Trace, nest: Nesting, frames: Mask, calls: Ints) -> tuple[Ints, Ints]:
    """Places in `nest` of the modules that calls of the host work for: forward, and backward."""
    host = trace.host
    forward = _module_at(trace, nest, frames, calls)
    backward = np.full(len(calls), ABSENT, np.int64)
    rest = np.flatnonzero(forward == ABSENT)
    makers = forward_of(
        trace, host.thread[calls[rest]].astype(np.int64), host.start_us[calls[rest]]
    )
    known = makers != ABSENT
    backward[rest[known]] = _module_at(trace, nest, frames, makers[known])
    return forward, backward


def _module_at(trace: Trace, nest: Nesting, frames: Mask, rows: Ints) -> Ints:
    host = trace.host
    found = innermost_at(trace, host.thread[rows].astype(np.int64), host.start_us[rows], frames)
    return nest.places(found, len(host))


def _sums(owners: Ints, values: Floats, size: int) -> Floats:
    known = owners != ABSENT
    return np.bincount(owners[known], weights=values[known], minlength=size).astype(np.float64)


def _told(
    trace: Trace, nest: Nesting, frames: Mask, work: dict[str, Floats], total: float, top: int
) -> tuple[list[ModuleClass], list[ModuleUse]]:
    """The classes, and the tree."""
    host = trace.host
    paths = merged_paths(nest.parent, host.name[nest.rows].astype(np.int64))
    size = len(paths.parent)
    if not size:
        return [], []
    lengths = host.duration_us[nest.rows]
    operators = np.flatnonzero(host.category == Category.OPERATOR)
    asked = _module_at(trace, nest, frames, operators)
    columns = {
        "calls": np.bincount(paths.node, minlength=size).astype(np.float64),
        "operators": _sums(asked, np.ones(len(asked)), len(nest.rows)),
        "host": _by_node(paths, lengths),
        "host_self": _by_node(paths, own_time(nest.parent, lengths)),
        **{kind: _by_node(paths, own) for kind, own in work.items()},
    }
    columns["operators"] = inclusive(paths.parent, _by_node(paths, columns["operators"]))
    names = [trace.names[name].removeprefix("nn.Module: ") for name in paths.name.tolist()]
    return _classes(names, columns, total), _tree(paths, names, columns, total, top)


def _by_node(paths: Paths, values: Floats) -> Floats:
    return np.bincount(paths.node, weights=values, minlength=len(paths.parent)).astype(np.float64)


def _tree(
    paths: Paths, names: list[str], columns: dict[str, Floats], total: float, top: int
) -> list[ModuleUse]:
    forward, backward = (inclusive(paths.parent, columns[kind]) for kind in ("forward", "backward"))
    gpu = forward + backward
    weights = gpu + 1e-9 * columns["host"]  # host time decides where the GPU does nothing
    kept = heaviest(paths.parent, weights, top)
    path: dict[int, str] = {}
    depth: dict[int, int] = {}
    found = []
    for node in tree_order(paths.parent, weights):
        above = int(paths.parent[node])
        depth[node] = depth[above] + 1 if above in depth else 0
        path[node] = f"{path[above]}/{names[node]}" if above in path else names[node]
        if kept[node]:
            use = ModuleUse(
                name=names[node],
                path=path[node],
                depth=depth[node],
                calls=int(columns["calls"][node]),
                operators=int(columns["operators"][node]),
                host_us=float(columns["host"][node]),
                host_self_us=float(columns["host_self"][node]),
                forward_gpu_us=float(forward[node]),
                forward_gpu_self_us=float(columns["forward"][node]),
                backward_gpu_us=float(backward[node]),
                backward_gpu_self_us=float(columns["backward"][node]),
                gpu_share=float(gpu[node]) / total if total > 0 else 0.0,
            )
            found.append(use)
    return found


def _classes(names: list[str], columns: dict[str, Floats], total: float) -> list[ModuleClass]:
    members: dict[str, list[int]] = {}
    for node, name in enumerate(names):
        members.setdefault(_NUMBER.sub("", name), []).append(node)
    found = []
    for kind, nodes in members.items():
        forward, backward = (float(columns[one][nodes].sum()) for one in ("forward", "backward"))
        use = ModuleClass(
            name=kind,
            modules=len({names[node] for node in nodes}),
            calls=int(columns["calls"][nodes].sum()),
            host_self_us=float(columns["host_self"][nodes].sum()),
            forward_gpu_self_us=forward,
            backward_gpu_self_us=backward,
            gpu_share=(forward + backward) / total if total > 0 else 0.0,
        )
        found.append(use)
    found.sort(
        key=lambda use: (-use.forward_gpu_self_us - use.backward_gpu_self_us, -use.host_self_us)
    )
    return found
