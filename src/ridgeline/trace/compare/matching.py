"""The same work in two trees of operators, whatever kernels it takes on either side.

Two libraries, two GPUs or two versions name their kernels differently, but the operators around the
launches are those of the model. Paths are matched from the outermost operator in. Where both
sides go on with the same operators they are followed; where they part, what is left below the
last common operator is held together: its own kernels, and the operators that only one side has.
An operator that stands nowhere on the other side is new or gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ridgeline.trace.compare.times import NO_OPERATOR, OperatorWork, Path, RankTimes, sum_of_work

_BACKWARD = "autograd::engine::evaluate_function: "
_SAME_WORK = 0.15
"""Share of the time whose operators or inputs may differ between captures of the same work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedWork:
    """One operator of both sides; None where a side has no such work."""

    name: str
    a: OperatorWork | None
    b: OperatorWork | None


def matched_operators(
    a: Mapping[Path, OperatorWork], b: Mapping[Path, OperatorWork]
) -> list[MatchedWork]:
    """The work of both sides by outermost and innermost common operator."""
    below_a, below_b = _children(a), _children(b)
    found: list[MatchedWork] = []
    open_paths: list[Path] = [()]
    while open_paths:
        path = open_paths.pop()
        both = {name: None for name in below_a.get(path, {}) if name in below_b.get(path, {})}
        open_paths += [(*path, name) for name in both]
        only_a = [(*path, name) for name in below_a.get(path, {}) if name not in both]
        only_b = [(*path, name) for name in below_b.get(path, {}) if name not in both]
        rest_a = [part for part in (path, *only_a) if _under(a, below_a, part, whole=part != path)]
        rest_b = [part for part in (path, *only_b) if _under(b, below_b, part, whole=part != path)]
        if path not in ((), (NO_OPERATOR,)) and rest_a and rest_b:
            found.append(
                MatchedWork(
                    name=label_of(path),
                    a=_together(a, below_a, path, rest_a),
                    b=_together(b, below_b, path, rest_b),
                )
            )
            continue
        found += [
            MatchedWork(name=label_of(one), a=_together(a, below_a, path, [one]), b=None)
            for one in rest_a
        ]
        found += [
            MatchedWork(name=label_of(one), a=None, b=_together(b, below_b, path, [one]))
            for one in rest_b
        ]
    return _by_name(found)


def label_of(path: Path) -> str:
    """The outermost and the innermost operator of a path.

    >>> label_of(("aten::linear", "aten::addmm")), label_of(("aten::add",))
    ('aten::linear › aten::addmm', 'aten::add')
    """
    outermost = path[0].removeprefix(_BACKWARD)
    return outermost if len(path) == 1 else f"{outermost} › {path[-1]}"


def _children(work: Mapping[Path, OperatorWork]) -> dict[Path, dict[str, None]]:
    """What stands directly below each path, in order."""
    found: dict[Path, dict[str, None]] = {}
    for path in work:
        for depth in range(len(path)):
            found.setdefault(path[:depth], {})[path[depth]] = None
    return found


def _under(
    work: Mapping[Path, OperatorWork],
    below: Mapping[Path, Mapping[str, None]],
    path: Path,
    *,
    whole: bool,
) -> list[OperatorWork]:
    """The work of a path itself, and of all below it when it is taken whole."""
    found = [work[path]] if path in work else []
    if not whole:
        return found
    open_paths = [(*path, name) for name in below.get(path, ())]
    while open_paths:
        one = open_paths.pop()
        if one in work:
            found.append(work[one])
        open_paths += [(*one, name) for name in below.get(one, ())]
    return found


def _together(
    work: Mapping[Path, OperatorWork],
    below: Mapping[Path, Mapping[str, None]],
    path: Path,
    parts: Iterable[Path],
) -> OperatorWork:
    pieces = [_under(work, below, part, whole=part != path) for part in parts]
    # An operator's calls are as many as those of the part that is called most often.
    calls = max(max(one.times.count for one in piece) for piece in pieces)
    works = [one for piece in pieces for one in piece]
    longest = max(works, key=lambda one: one.times.total_us)
    return replace(sum_of_work(works, calls), shapes=longest.shapes)


def _by_name(found: list[MatchedWork]) -> list[MatchedWork]:
    """One row for each name, though several paths have it."""
    sides: dict[str, tuple[list[OperatorWork], list[OperatorWork]]] = {}
    for row in found:
        own = sides.setdefault(row.name, ([], []))
        for parts, side in zip(own, (row.a, row.b), strict=True):
            if side is not None:
                parts.append(side)
    return [
        MatchedWork(name=name, a=sum_of_work(a) if a else None, b=sum_of_work(b) if b else None)
        for name, (a, b) in sides.items()
    ]


# -- is it the same work? --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLikeness:
    """How far two traces hold the same operators; None where the traces do not say."""

    operators: float | None
    """Share of the time of operators that both sides have."""
    order: float | None
    """Share of outermost operators that follow the same one on both sides."""
    inputs: float | None
    """Share of the time of common operators whose inputs have the same sizes on both sides."""
    other_inputs: tuple[str, ...]
    """The operators whose inputs differ, most time first, with what they get."""

    @property
    def other_work(self) -> bool:
        """Do the inputs differ so far that times cannot be held against each other?"""
        return self.inputs is not None and self.inputs < 1 - _SAME_WORK


def likeness(rows: Iterable[MatchedWork], a: RankTimes, b: RankTimes, work: float) -> WorkLikeness:
    """How much of the two sides is the same work; `work` is that in B over that in A."""
    told = [row for row in rows if not row.name.startswith(NO_OPERATOR)]
    whole = sum(_time(row) for row in told)
    common = [row for row in told if row.a and row.b]
    sized = [row for row in common if row.a and row.b and row.a.shapes and row.b.shapes]
    sized_us = sum(_time(row) for row in sized)
    same_us = sum(_time(row) * _same_sizes(row) for row in sized)
    other = [row for row in sized if _same_sizes(row) < 1 - _SAME_WORK]
    return WorkLikeness(
        operators=sum(_time(row) for row in common) / whole if whole > 0 else None,
        order=_same_order(a.following, b.following, work),
        inputs=same_us / sized_us if sized_us > 0 else None,
        other_inputs=tuple(
            f"{row.name}: {_own_sizes(row.a, row.b)} in A, {_own_sizes(row.b, row.a)} in B"
            for row in sorted(other, key=_time, reverse=True)
        ),
    )


def _time(row: MatchedWork) -> float:
    return sum(side.times.total_us for side in (row.a, row.b) if side is not None)


def _same_sizes(row: MatchedWork) -> float:
    """Share of the calls of both sides whose inputs are as large as some of the other's."""
    assert row.a is not None
    assert row.b is not None
    a, b = row.a.shapes, row.b.shapes
    shares = [
        sum(count for sizes, count in own.items() if sizes in others) / max(1, sum(own.values()))
        for own, others in ((a, b), (b, a))
    ]
    return min(shares)


def _own_sizes(side: OperatorWork | None, other: OperatorWork | None) -> str:
    """The most frequent inputs that the other side does not have."""
    assert side is not None
    assert other is not None
    own = {sizes: count for sizes, count in side.shapes.items() if sizes not in other.shapes}
    shapes = own or side.shapes
    return f"({max(shapes, key=lambda sizes: shapes[sizes])})"


def _same_order(
    a: Mapping[tuple[str, str], int], b: Mapping[tuple[str, str], int], work: float
) -> float | None:
    if not a or not b:
        return None
    pairs = {**a, **b}
    least = sum(min(a.get(pair, 0), b.get(pair, 0) / work) for pair in pairs)
    most = sum(max(a.get(pair, 0), b.get(pair, 0) / work) for pair in pairs)
    return least / most if most > 0 else None
