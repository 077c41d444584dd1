"""Which matrices of a block share an input, and what before them can take a scale over.

Found by watching a run, not by the names of classes: matrices share an input when the same tensor
flows into them. A scale per channel moves out of their inputs into what made the inputs: the
weights of a norm, or the output rows of an earlier matrix (v_proj before o_proj, up_proj before
down_proj). Each such move is tried with powers of two, which round nothing: only where every output
stays as it was, it is right. A GELU between two layers, on_progress, does not let a scale through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import Matrix
from ridgeline.compress.watching.capture import (
    Matmul,
    MatmulMode,
    Origins,
    module_outputs,
    run_with,
)

_UNCHANGED = 1e-5
"""Largest relative change of an output that still is rounding."""
_ROWS = 512
"""Rows of a layer's outputs that are compared; all of a block's are."""
_LOOKED_BACK = 6
"""Matrices before a group that may be what made its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorber:
    """What can be divided by a scale per channel so that the inputs of a group are."""

    vectors: tuple[Tensor, ...]
    """Weight (and bias) of a norm [in], or the bias of rows, divided along their only dimension."""
    rows: Tensor | None = None
    """[channels, …] of an earlier matrix, a view."""
    offset: float = 0.0
    """Added to a norm's weight when it is used (Gemma: 1)."""
    channels: Tensor
    """The channel that each input column comes from, [in] int64 (grouped-query heads
    repeat them)."""

    def divide(self, scale: Tensor) -> None:
        """By a scale [in], equal for all columns of one channel, in place."""
        of_channel = scale.new_ones(int(self.channels.max()) + 1)
        of_channel[self.channels] = scale
        for number, vector in enumerate(self.vectors):
            shift = self.offset if number == 0 else 0.0
            vector.copy_((vector + shift) / of_channel - shift)
        if self.rows is not None:
            self.rows.div_(of_channel[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInput:
    """Products into which one tensor flows, or (experts) rows of it."""

    matmuls: tuple[Matmul, ...]
    statistics: tuple[int, ...]
    """Per matmul, a number; equal where the very same rows flow in."""
    absorber: Absorber | None = None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices of all matmuls, gates and routers among them."""
        return tuple(matrix for matmul in self.matmuls for matrix in matmul)


def groups_of(
    matrices: tuple[Matrix, ...], forward: Callable[[], Tensor]
) -> tuple[SharedInput, ...]:
    """In the order in which the block uses them; without absorbers.

    Args:
        matrices: Of the block.
        forward: Runs a chunk through it.
    """
    origins = Origins(matrices)
    run_with(origins, forward)
    return _grouped(matrices, origins)


def stages_of(groups: tuple[SharedInput, ...]) -> tuple[tuple[SharedInput, ...], ...]:
    """Groups that are rounded before what follows them looks at its inputs.

    One each, but for the experts of one parameter, which are one stage.
    """
    home: dict[int, int] = {}
    stages: list[list[SharedInput]] = []
    for group in groups:
        parameters = {id(matmul[0].parameter) for matmul in group.matmuls}
        number = next((home[key] for key in parameters if key in home), len(stages))
        home.update(dict.fromkeys(parameters, number))
        if number == len(stages):
            stages.append([])
        stages[number].append(group)
    return tuple(tuple(stage) for stage in stages)


def with_absorbers(
    block: nn.Module,
    matrices: tuple[Matrix, ...],
    forward: Callable[[], Tensor],
    head_dim: int | None,
) -> tuple[SharedInput, ...]:
    """The groups of `groups_of`, each with what can take its scales over, if anything can.

    Args:
        block: With its weights, which are as before when this returns.
        matrices: Of the block.
        forward: Runs a chunk through the block.
        head_dim: Of its attention; None: not known.
    """
    origins = Origins(matrices)
    made: dict[int, nn.Module] = {}
    hooks = module_outputs(
        block, lambda module, output: made.setdefault(origins.number(output), module) and None
    )
    try:
        run_with(origins, forward)
    finally:
        for hook in hooks:
            hook.remove()
    number_of = dict(origins.inputs)
    trial = _Trial(matrices, forward)
    found = []
    for group in _grouped(matrices, origins):
        candidates: list[Absorber] = []
        if group.matmuls[0] in number_of:
            width = group.matrices[0].weight.shape[1]
            if _has_all_experts(group, matrices):
                candidates += _norms(made.get(number_of[group.matmuls[0]]), width)
            candidates += _rows(_before(origins, group), width, head_dim)
        absorber = next((found for found in candidates if trial.holds(group, found)), None)
        found.append(replace(group, absorber=absorber))
    return tuple(found)


def _has_all_experts(group: SharedInput, matrices: tuple[Matrix, ...]) -> bool:
    """An expert that this run did not reach may share the input unseen."""
    own = {matrix.name for matrix in group.matrices}
    parameters = {id(matrix.parameter) for matrix in group.matrices}
    return all(matrix.name in own for matrix in matrices if id(matrix.parameter) in parameters)


def _grouped(matrices: tuple[Matrix, ...], origins: Origins) -> tuple[SharedInput, ...]:
    """Products of one origin.

    Experts that were not reached go with two others of their kind that share one, or stand alone.
    """
    members: dict[int, list[Matmul]] = {}
    for matmul, number in dict(origins.inputs).items():
        members.setdefault(number, []).append(matmul)
    for matmul in _unreached(matrices, origins):
        parameter = id(matmul[0].parameter)
        kinds = ((found, [id(one[0].parameter) for one in found]) for found in members.values())
        home = next((found for found, ids in kinds if ids.count(parameter) > 1), None)
        if home is None:
            home = members.setdefault(-1 - len(members), [])
        home.append(matmul)
    numbers: dict[Any, int] = {}
    groups = []
    for found in members.values():
        keys = [origins.same_rows.get(matmul, matmul[0].name) for matmul in found]
        statistics = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
        groups.append(SharedInput(matmuls=tuple(found), statistics=statistics))
    return tuple(groups)


def _unreached(matrices: tuple[Matrix, ...], origins: Origins) -> list[Matmul]:
    reached = {matrix.name for matmul, _ in origins.inputs for matrix in matmul}
    by_slice: dict[int, list[Matrix]] = {}
    for matrix in matrices:
        if matrix.name not in reached and not matrix.kept:
            by_slice.setdefault(matrix.slice_pointer, []).append(matrix)
    return [tuple(found) for found in by_slice.values()]


def _before(origins: Origins, group: SharedInput) -> list[Matrix]:
    """Matrices used before the group, the last one first; further back nothing is looked for."""
    earlier: list[Matrix] = []
    for matmul, _ in origins.inputs:
        if matmul in group.matmuls:
            break
        earlier = [*reversed(matmul), *earlier]
    return [matrix for matrix in earlier if not matrix.kept][:_LOOKED_BACK]


def _norms(maker: nn.Module | None, width: int) -> Iterator[Absorber]:
    """The module whose output is the input, if it ends with a weight per channel."""
    own = {} if maker is None else dict(maker.named_parameters(recurse=False))
    vectors = [own[name].data for name in ("weight", "bias") if name in own]
    if not vectors or any(vector.shape != (width,) for vector in vectors):
        return
    for offset in (0.0, 1.0):
        yield Absorber(vectors=tuple(vectors), offset=offset, channels=torch.arange(width))


def _rows(earlier: list[Matrix], width: int, head_dim: int | None) -> Iterator[Absorber]:
    """Rows of earlier matrices: all, or the last of a stacked one (GPT-2's q, k, v)."""
    for matrix in earlier:
        rows = matrix.weight.shape[0]
        for size, channels in _channels(rows, width, head_dim):
            for start in sorted({0, rows - size}) if rows >= size else ():
                part = slice(start, start + size)
                bias = () if matrix.bias is None else (matrix.bias.data[part],)
                yield Absorber(vectors=bias, rows=matrix.weight[part], channels=channels)


def _channels(rows: int, width: int, head_dim: int | None) -> Iterator[tuple[int, Tensor]]:
    """How many channels can make `width` columns, and which one makes each of them.

    As many; or, with grouped queries, fewer: each head of values is there once for several heads.
    """
    yield width, torch.arange(width)
    if head_dim is None or width % head_dim:
        return
    heads = width // head_dim
    for kv_heads in range(1, heads):
        size = head_dim * kv_heads
        # Values by themselves, or stacked below queries and keys.
        if heads % kv_heads == 0 and rows in {size, width + 2 * size}:
            by_head = torch.arange(size).unflatten(0, (-1, head_dim))
            yield size, by_head.repeat_interleave(heads // kv_heads, 0).flatten()


class _Trial:
    """Scales by powers of two and looks at the outputs."""

    def __init__(self, matrices: tuple[Matrix, ...], forward: Callable[[], Tensor]) -> None:
        self._matrices = matrices
        self._forward = forward
        self._before = self._outputs()

    def holds(self, group: SharedInput, absorber: Absorber) -> bool:
        """Whether nothing changes; weights are put back."""
        generator = torch.Generator().manual_seed(0)
        count = int(absorber.channels.max()) + 1
        of_channel = torch.exp2(torch.randint(-3, 4, (count,), generator=generator).float())
        scale = of_channel[absorber.channels]
        touched = [*absorber.vectors, *([] if absorber.rows is None else [absorber.rows])]
        touched += [matrix.weight for matrix in group.matrices]
        saved = [tensor.clone() for tensor in touched]
        absorber.divide(scale)
        for matrix in group.matrices:
            matrix.weight.mul_(scale)
        try:
            after = self._outputs()
        finally:
            for tensor, values in zip(touched, saved, strict=True):
                tensor.copy_(values)
        own = {matrix.name for matrix in group.matrices}
        whole = _change(self._before[0], after[0])
        return whole <= _UNCHANGED and all(
            _change(value, after[1][name]) <= _UNCHANGED
            for name, value in self._before[1].items()
            if name in own and name in after[1]
        )

    def _outputs(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The output of the block, and rows of each matmul's under its first matrix's name."""
        outputs: dict[str, Tensor] = {}
        mode = MatmulMode(
            self._matrices,
            lambda _product, _x: None,
            lambda matmul, y: outputs.update({matmul[0].name: y.flatten(0, -2)[:_ROWS].clone()}),
        )
        result = run_with(mode, self._forward)
        return result, outputs


def _change(before: Tensor, after: Tensor) -> float:
    if before.shape != after.shape:
        return float("inf")
    size = float(before.abs().amax())
    return float((before - after).abs().amax()) / size if size else float("inf")
