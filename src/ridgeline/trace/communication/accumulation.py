"""Gradients that are sent after each pass of a step that adds several up: `synced_passes(view)`.

Gradient accumulation runs forward and backward several times before the optimizer. Sent after the
last backward pass alone (`no_sync` of DistributedDataParallel, `set_requires_gradient_sync` of
FSDP2) they cost once what they cost each time otherwise. The passes are told apart by the products
of matrices that another thread than autograd's launches between their collectives: the forward
pass. All passes of all steps must send the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Trace
from ridgeline.trace.communication.collectives import CollectiveCall, calls_of
from ridgeline.trace.host_calls import launch_rows, names_matching
from ridgeline.trace.kernel_names import MATRIX, is_communication, kernel_classes
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import View

_OF_GRADIENTS = ("all-reduce", "reduce-scatter")
_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedPasses:
    """A step that sends the gradients of each of its passes."""

    passes: int
    """Backward passes of a step."""
    spared_share: float
    """The part of all communication that is sent too often."""


def synced_passes(view: View) -> SyncedPasses | None:
    """How often a step sends its gradients; None where it is once, or cannot be told."""
    trace, talks = view.trace, is_communication(view.trace)
    calls, backward = launch_rows(trace), names_matching(trace, _AUTOGRAD)
    autograd = distinct(trace.host.thread[backward[trace.host.name]]).astype(np.int64)
    rows = view.rows[talks[view.rows] & (calls[view.rows] != ABSENT)]
    borders = _borders(view)
    if not len(rows) or not len(autograd) or len(borders) < 2:
        return None
    rows = rows[np.argsort(trace.host.start_us[calls[rows]], kind="stable")]
    sent = calls_of(trace, rows)
    chosen = np.array([call.kind in _OF_GRADIENTS for call in sent], bool)
    if not chosen.any() or not np.isin(trace.host.thread[calls[rows[chosen]]], autograd).all():
        return None
    own = [call for call, of_gradients in zip(sent, chosen.tolist(), strict=True) if of_gradients]
    launched = trace.host.start_us[calls[rows[chosen]]]
    passes = _passes(own, launched, _forward_us(trace, autograd), borders)
    if passes < 2:
        return None
    lengths = trace.gpu.duration_us[rows]
    of_gradients = float(lengths[chosen].sum() / lengths.sum()) if lengths.sum() > 0 else 0.0
    return SyncedPasses(passes=passes, spared_share=(passes - 1) / passes * of_gradients)


def _borders(view: View) -> Floats:
    """Where one step ends and the next begins on the host: of its ranges, else its optimizer's."""
    if len(view.steps) > 1:
        return np.array([*(step.start_us for step in view.steps), np.inf])
    host = view.trace.host
    ends = host.ends_of(names_matching(view.trace, _OPTIMIZER)[host.name])
    return np.concatenate(([-np.inf], np.sort(ends)))


def _forward_us(trace: Trace, autograd: Ints) -> Floats:
    """When products of matrices were launched outside of autograd's threads."""
    calls = launch_rows(trace)
    products = np.flatnonzero(np.isin(kernel_classes(trace), MATRIX) & (calls != ABSENT))
    launches = calls[products]
    found = trace.host.start_us[launches[~np.isin(trace.host.thread[launches], autograd)]]
    return np.sort(found)


def _passes(
    sent: list[CollectiveCall], launched_us: Floats, forward_us: Floats, borders: Floats
) -> int:
    """The backward passes of each step, where all of all steps send the same; else 0."""
    forward = np.searchsorted(forward_us, launched_us)
    step = np.searchsorted(borders, launched_us, side="right")
    inside = (step > 0) & (step < len(borders))
    groups: dict[tuple[int, int], list[CollectiveCall]] = {}
    for place in np.flatnonzero(inside).tolist():
        groups.setdefault((int(step[place]), int(forward[place])), []).append(sent[place])
    counts = np.unique([key[0] for key in groups], return_counts=True)[1]
    first = next(iter(groups.values()), [])
    alike = all(group == first for group in groups.values())
    return int(counts[0]) if len(counts) and alike and len(set(counts.tolist())) == 1 else 0
