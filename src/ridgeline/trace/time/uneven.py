"""Kernels that take longer at times than they usually do, though they do the same.

A program that goes round launches the same kernels again. How many rounds a window holds is read
off the counts of kernels of one name, grid and stream, which they divide. The n-th kernel of such a
group in each round is the same work; what it takes usually is its lower quartile over the rounds.
What is above that by more than a tenth is not in the program where it hits kernels of many names,
or hits some far harder than data could, or all that compute from some round on: clocks fall, or
another process has the GPU in between. A first round that is slow warms up, and does not count.
Where a process takes the GPU for as long each time, what it takes of kernels shorter than that is
seen, and the longer ones, which never run without it, lose the same share of their time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Kind, Mask
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.kernel_names import is_communication
from ridgeline.trace.windows import View

_LEAST_ROUNDS, _MOST_ROUNDS = 3, 12
_MOSTLY = 0.8
_LONGER = 1.10
_LEAST_US = 1.0
_NAMES, _MORE = 3, 0.3
"""Fewer names than that hold most of the excess where their data make it, and more of it than of
the time."""
_CHANGED = 0.35
"""So much of the work may differ between rounds, on average."""
_NEARLY = 1.02
_FEW = 0.02
"""So many kernels of one round may run beside the next one's."""
_FAR = 4.0
"""Data make a kernel so many times as long next to never; another process does."""
_WIDE, _PART = 0.4, 0.05
"""Clocks are why, where several names that hold so much of the time get slower at one round."""
_TURN_US, _TURNS, _ALIKE = 200.0, 8, 0.15
"""So many times another process has had the GPU for at least that, and as long as mostly."""
_STEADY = 1.05
"""Rounds before the slow ones are what is usual."""
_OF_NOTE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenKernels:
    """What the kernels of a window took beyond what they usually take in it."""

    excess_us: float
    rounds: int
    slower: tuple[float, ...]
    """Round → its kernels' time over what it usually is."""
    at_the_end: bool
    """Are the slow rounds the last ones, and those before them alike?"""
    longest_us: float
    """The median excess of the kernels that have any."""
    names: tuple[str, ...]
    """The kernels that lose most."""
    share: Floats
    """GPU event of the trace → the part of its time that is excess."""


def uneven_kernels(view: View) -> UnevenKernels | None:
    """None where rounds are not to be told, or kernels take what they always do."""
    gpu = view.trace.gpu
    rows = view.rows[(gpu.kind[view.rows] == Kind.KERNEL) & (gpu.duration_us[view.rows] > 0)]
    known = launch_rows(view.trace)[rows] != ABSENT
    if 2 * known.sum() > len(rows):
        rows = rows[known]  # what was launched before the record is the rest of a round
    rows = rows[~is_communication(view.trace)[rows]]
    if len(rows) < _LEAST_ROUNDS:
        return None
    group = _groups(view, rows)
    counts = np.bincount(group)
    time = np.bincount(group, gpu.duration_us[rows]).astype(np.float64)
    found = [rows[_same_work(group, counts, rounds)] for rounds in _rounds(counts, time)]
    found = [same for same in found if _one_by_one(gpu.start_us[same])]
    found = [same for same in found if _is_same(gpu.duration_us[same])]
    # Where rounds put some different work together, more of it seems to be uneven.
    excess = [float(_excess(view, same).sum()) for same in found]
    least = min(excess, default=0.0)
    good = [same for same, us in zip(found, excess, strict=True) if us <= _NEARLY * least]
    return _over_rounds(view, good[-1]) if good else None


def _is_same(took: Floats) -> bool:
    """Does most work take as long in the next round, but for one change of all of it?

    Where the number of rounds is a wrong one, different work stands in a row.
    """
    longer = took[:, 1:] / took[:, :-1]
    changed = np.sort(((longer > _LONGER) | (longer < 1 / _LONGER)).mean(axis=0))
    return bool(changed[:-1].mean() <= _CHANGED)


def _one_by_one(starts: Floats) -> bool:
    """Does each round begin when the one before it is over, but for a few kernels?"""
    first, last = np.quantile(starts, (_FEW, 1 - _FEW), axis=0)
    return bool((last[:-1] <= first[1:]).all())


def _excess(view: View, same: Ints) -> Floats:
    """What each kernel takes beyond the usual; a row of `same` work each, a column for a round."""
    took = view.trace.gpu.duration_us[same]
    usual = _usual_us(took)
    found: Floats = np.where(
        (took > _LONGER * usual) & (took > usual + _LEAST_US), took - usual, 0.0
    )
    return found


def _usual_us(took: Floats) -> Floats:
    found: Floats = np.quantile(took, 0.25, axis=1, method="lower", keepdims=True)
    return found


def _over_rounds(view: View, same: Ints) -> UnevenKernels | None:
    """What is uneven about work that is the same in each round; None where the program may be why.

    The rows of `same` are of one piece of work each, its columns are rounds.
    """
    gpu, excess = view.trace.gpu, _excess(view, same)
    took, whole = gpu.duration_us[same], float(excess.sum())
    if whole < _OF_NOTE * view.window_us:
        return None
    slower = took.sum(axis=0) / _usual_us(took).sum()
    if excess[:, 0].sum() > _MOSTLY * whole:
        return None
    slow = slower > 0.5 * (slower.min() + slower.max())
    at_the_end = bool(slow[-int(slow.sum()) :].all() and slower[~slow].max() < _STEADY)
    names, hit = gpu.name[same], excess > 0
    lost = np.bincount(names.ravel(), excess.ravel()).astype(np.float64)
    spent = np.bincount(names.ravel(), took.ravel()).astype(np.float64)
    first = np.argsort(-lost)
    far = float(np.median((excess / _usual_us(took))[hit])) > _FAR
    touched = float(took[hit.any(axis=1)].sum()) > _WIDE * float(took.sum())
    several = int((lost > _PART * whole).sum()) > 1
    wide = (at_the_end and touched) or _of_many(lost[first], spent[first])
    taken = _taken_in_turn(took) if far or several else None
    if not (far or taken or (several and wide)):
        return None
    share = np.zeros(len(gpu))
    if taken:
        share[view.rows[gpu.kind[view.rows] == Kind.KERNEL]] = taken
        excess = np.where(_is_short(took), took - took.min(axis=1, keepdims=True), taken * took)
    share[same] = excess / took
    return UnevenKernels(
        excess_us=float((share * gpu.duration_us)[view.rows].sum()),
        rounds=len(slower), slower=tuple(slower.tolist()),
        at_the_end=at_the_end,
        longest_us=float(np.median(excess[hit])),
        names=tuple(view.trace.names[name] for name in first[:3].tolist()), share=share,
    )  # fmt: skip


def _taken_in_turn(took: Floats) -> float | None:
    """The share of the GPU's time that another process has, which takes it for as long each time.

    A kernel as long as such a turn, or longer, is never seen without one. It loses as much of its
    time as the shorter ones, of which most are. None where turns are not to be told.
    """
    usual = took.min(axis=1, keepdims=True)
    excess = np.where(took > _LONGER * usual, took - usual, 0.0)
    hits = excess[excess >= _TURN_US]
    if len(hits) < _TURNS:
        return None
    turn_us = float(np.median(hits))
    alike = np.abs(hits / turn_us - np.maximum(1, np.round(hits / turn_us))) < _ALIKE
    short = usual[:, 0] < turn_us
    if alike.mean() < _MOSTLY or not short.any():
        return None
    lost = float(excess[short].sum())
    return lost / float(took[short].sum()) if (excess[short] >= _TURN_US).sum() >= _TURNS else None


def _is_short(took: Floats) -> Mask:
    """Which work is short enough to be seen without another process's turn in some round."""
    usual = took.min(axis=1, keepdims=True)
    excess = took - usual
    turn_us = float(np.median(excess[excess >= _TURN_US]))
    found: Mask = np.broadcast_to(usual < turn_us, took.shape)
    return found


def _groups(view: View, rows: Ints) -> Ints:
    """The number of the group that each kernel is of: one name, grid and stream."""
    gpu = view.trace.gpu
    columns = np.stack((gpu.name[rows], gpu.blocks[rows], gpu.stream[rows])).astype(np.int64)
    order = np.lexsort(columns)
    changed = (np.diff(columns[:, order], axis=1) != 0).any(axis=0)
    found = np.empty(len(rows), np.int64)
    found[order] = np.concatenate(([0], np.cumsum(changed)))
    return found


def _rounds(counts: Ints, time: Floats) -> list[int]:
    """Small numbers that divide the counts of most of the time: as many rounds there may be."""
    least = range(_LEAST_ROUNDS, _MOST_ROUNDS + 1)
    enough = _MOSTLY * time.sum()
    return [rounds for rounds in least if time[counts % rounds == 0].sum() >= enough]


def _same_work(group: Ints, counts: Ints, rounds: int) -> Ints:
    """Places of kernels that do the same, a row each with a column for each round."""
    order = np.argsort(group, kind="stable")
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    own = group[order]
    each = counts[own] // rounds
    order, own, each, at = (
        part[counts[own] % rounds == 0]
        for part in (order, own, each, np.arange(len(order)) - first[own])
    )
    at_in_round, number = at % each, at // each
    found: Ints = order[np.lexsort((number, at_in_round, own))].reshape(-1, rounds)
    return found


def _of_many(lost: Floats, spent: Floats) -> bool:
    """Do many kernels lose time, or the largest no more than their part of it?"""
    few = int(np.searchsorted(np.cumsum(lost), _MOSTLY * lost.sum())) + 1
    part = lost[:few].sum() / lost.sum() - spent[:few].sum() / spent.sum()
    return few >= _NAMES or bool(part <= _MORE)
