"""A model directory without some of its neurons, heads or layers, block by block.

First it is chosen what goes, with one block in memory at a time and each block seeing what the
pruned ones before it hand on; then tensors are copied one by one and cut, bit by bit as they were.
Importance by gradients, and the loss without a layer, take the whole model in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_writer import CompressedWriter
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import is_transposed, weight_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.flow import Flow
from ridgeline.compress.pruning import weights
from ridgeline.compress.pruning.ahead import in_memory, mean_loss
from ridgeline.compress.pruning.structured import layers, listed, smaller, units
from ridgeline.compress.pruning.structured.places import (
    Cut,
    attention_of,
    mlp_of,
    shorten,
    stored_cuts,
)
from ridgeline.compress.pruning.structured.units import worth
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.errors import InputError
from ridgeline.records.scheme import Pruning

_SEQUENCES = 8
"""Sequences that go through a whole model at once."""


@dataclass(kw_only=True)
class KeptParts:
    """What of a model stays."""

    config: dict[str, Any]
    """The config.json that fits."""
    cuts: dict[str, tuple[int, Tensor]] = field(default_factory=dict)
    """The dimension along which a tensor is cut, and what stays, by its stored name."""
    zeroed: dict[str, tuple[int, Tensor]] = field(default_factory=dict)
    """The dimension of a tensor, and the places along it that become zero, by its stored name."""
    kept_layers: list[int] | None = None
    """Places of blocks that stay; None: all."""
    notices: tuple[str, ...] = ()
    """What had to be done that was not asked for."""


def prune_units(
    model: Path,
    pruning: Pruning,
    out: Path,
    tokens: Tensor | None = None,
    *,
    multiple: int = units.MULTIPLE,
) -> KeptParts:
    """Write the smaller model; transformers and `ridgeline serve` load it as any other.

    An interrupted call leaves nothing at `out`; a new one ends with the same bits.

    Args:
        model: A Hugging Face directory with safetensors.
        pruning: With a structure.
        out: Must not exist, or be empty.
        tokens: [sequences, length] int64 of calibration, but for magnitude.
        multiple: Of what an MLP keeps: of the groups that it will be rounded in.

    Raises:
        InputError: The family, the criterion and the share do not go together.
    """
    checkpoint = CheckpointFiles(model)
    skeleton = ModelSkeleton(checkpoint)
    if pruning.scope == "global":
        raise InputError(
            f"{pruning.structure} are chosen in each layer: a config.json has one width for all of"
            " them; leave `global` out"
        )
    if pruning.criterion not in ("magnitude", "random") and tokens is None:
        raise InputError(f"{pruning.criterion} needs calibration text; give --calibration")
    match pruning.structure:
        case "heads" if pruning.listed:
            choice = _choose_listed(skeleton, pruning)
        case "layers":
            choice = _choose_layers(skeleton, pruning, tokens)
        case "neurons" | "heads":
            choice = _choose_within(skeleton, pruning, tokens, multiple)
        case "weights":
            raise InputError("single weights are set to zero, not removed")
        case "channels":
            raise InputError("channels are those of image classifiers; choose neurons or heads")
    _write(checkpoint, skeleton, choice, out)
    return choice


def _choose_listed(skeleton: ModelSkeleton, pruning: Pruning) -> KeptParts:
    """The heads of a list; nothing is looked at but where they are."""
    config = skeleton.checkpoint.config
    block = skeleton.blocks[0]
    assert isinstance(block, nn.Module)
    place, heads = attention_of(block), smaller.heads_of(config)
    going = listed.heads_by_layer(pruning.listed, len(skeleton.blocks), heads)
    alike = listed.kept_alike(going, heads, config)
    choice = KeptParts(config=dict(config) if alike is None else alike[1])
    for number, heads_going in enumerate(going):
        prefix = skeleton.block_prefix(number)
        if alike is None:
            places = torch.tensor(sorted(heads_going), dtype=torch.int64)
            columns = units.numbers_of(places, heads.dim)
            output = Cut(linear=f"{place.owner}.{place.output}", side="inputs", kept=columns)
            cuts, into = ([output] if heads_going else []), choice.zeroed
        else:
            query, kv = listed.staying(heads_going, heads, alike[0])
            cuts, into = units.head_cuts(place, heads.dim, query, kv), choice.cuts
        for cut in cuts:
            for name, dim in stored_cuts(block, cut).items():
                (piece,) = skeleton.pieces[prefix + name]
                into[piece.source] = (dim, cut.kept)
    if alike is None:
        why = (
            "the listed heads are zero and not pruned: a config.json has one number of heads,"
            " and these leave other ones in other layers or groups"
        )
        choice.notices = (why,)
    return choice


def _choose_layers(skeleton: ModelSkeleton, pruning: Pruning, tokens: Tensor | None) -> KeptParts:
    config = skeleton.checkpoint.config
    layers.kept_layers([0.0] * len(skeleton.blocks), pruning.share)  # does the share go?
    match pruning.criterion:
        case "wanda":
            assert tokens is not None
            found = _influences(skeleton, tokens)
        case "taylor":
            assert tokens is not None
            whole, given = in_memory(skeleton.checkpoint.directory), tokens
            blocks = whole.get_submodule(skeleton.prefix)
            assert isinstance(blocks, nn.ModuleList)
            found = layers.loss_without(list(blocks), lambda: _loss_of(whole, given))
        case _:
            raise InputError(
                f"layers are chosen by what flows through them, which {pruning.criterion} does not"
                " look at; choose wanda (how little a layer changes) or taylor (the loss without"
                " it)"
            )
    kept = layers.kept_layers(found, pruning.share)
    return KeptParts(config=smaller.without_layers(config, kept), kept_layers=kept)


def _influences(skeleton: ModelSkeleton, tokens: Tensor) -> list[float]:
    flow = Flow(skeleton, tokens)
    found = []
    for number in range(len(skeleton.blocks)):
        block = skeleton.load_block(number)
        total = 0.0
        for chunk in flow.chunks():
            leaving = flow.through(block, number, chunk)
            width = chunk.shape[-1]
            total += layers.influence(chunk.reshape(-1, width), leaving.reshape(-1, width)) * len(
                chunk
            )
            chunk.copy_(leaving)
        found.append(total / len(tokens))
        skeleton.unload_block(number)
    return found


def _choose_within(
    skeleton: ModelSkeleton, pruning: Pruning, tokens: Tensor | None, multiple: int
) -> KeptParts:
    config = skeleton.checkpoint.config
    block = skeleton.blocks[0]
    assert isinstance(block, nn.Module)
    choose: _Neurons | _Heads = (
        _Neurons(block, config, pruning, multiple)
        if pruning.structure == "neurons"
        else _Heads(block, config, pruning)
    )
    importance = _gradients(skeleton, choose.outer, tokens) if pruning.criterion == "taylor" else {}
    flow = Flow(skeleton, tokens) if pruning.criterion == "wanda" and tokens is not None else None
    choice = KeptParts(config=choose.config)
    for number in range(len(skeleton.blocks)):
        block = skeleton.load_block(number)
        prefix = skeleton.block_prefix(number)
        seen = None if flow is None else _seen(flow, block, number, choose.outer)
        ranks = worth(
            weight_of(block.get_submodule(choose.outer)),
            pruning,
            seen,
            importance.get(prefix + choose.outer),
        )
        cuts = choose.cuts(ranks)
        for cut in cuts:
            for name, dim in stored_cuts(block, cut).items():
                (piece,) = skeleton.pieces[prefix + name]
                choice.cuts[piece.source] = (dim, cut.kept)
        if flow is not None:
            shorten(block, cuts)
            choose.recount(block)
            flow.advance(block, number)
        skeleton.unload_block(number)
    return choice


class _Neurons:
    """Chooses neurons of each block."""

    def __init__(
        self, block: nn.Module, config: dict[str, Any], pruning: Pruning, multiple: int
    ) -> None:
        self._place = mlp_of(block)
        self.outer = self._place.outer
        width = weight_of(block.get_submodule(self.outer)).shape[1]
        self._kept = units.kept_width(width, pruning.share, multiple)
        self.config = smaller.without_neurons(config, self._place, self._kept)

    def cuts(self, ranks: Tensor) -> list[Cut]:
        return units.neuron_cuts(self._place, units.kept_neurons(ranks, self._kept))

    def recount(self, block: nn.Module) -> None:
        """Nothing counts neurons in memory."""


class _Heads:
    """Chooses heads of each block."""

    def __init__(self, block: nn.Module, config: dict[str, Any], pruning: Pruning) -> None:
        self._place = attention_of(block)
        self.outer = f"{self._place.owner}.{self._place.output}"
        self._heads = smaller.heads_of(config)
        self._kept = units.kept_heads(self._heads, pruning.share)
        self.config = smaller.without_heads(config, self._kept)

    def cuts(self, ranks: Tensor) -> list[Cut]:
        query, kv = units.chosen_heads(ranks, self._heads, self._kept)
        return units.head_cuts(self._place, self._heads.dim, query, kv)

    def recount(self, block: nn.Module) -> None:
        units.recount_heads(block, self._place, self._kept)


def _seen(flow: Flow, block: nn.Module, number: int, linear: str) -> CalibrationStatistics:
    """What flows into one linear layer, over all of calibration."""
    total: list[Tensor] = []
    tokens = 0

    def note(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        nonlocal tokens
        rows = args[0].detach().reshape(-1, args[0].shape[-1]).float()
        total.append(rows.square().sum(dim=0))
        tokens += len(rows)

    handle = block.get_submodule(linear).register_forward_pre_hook(note)
    try:
        for chunk in flow.chunks():
            flow.through(block, number, chunk)
    finally:
        handle.remove()
    return CalibrationStatistics(num_tokens=tokens, square_norm=torch.stack(total).sum(dim=0))


def _gradients(skeleton: ModelSkeleton, linear: str, tokens: Tensor | None) -> dict[str, Tensor]:
    """Taylor importance [out, in] of one linear layer of every block, by its name."""
    assert tokens is not None
    model = in_memory(skeleton.checkpoint.directory)
    places = [skeleton.block_prefix(number) + linear for number in range(len(skeleton.blocks))]
    for place in places:
        model.get_parameter(f"{place}.weight").requires_grad_()
    names = [f"{place}.weight" for place in places]
    found = weights.importance_of(model, tokens.split(_SEQUENCES), mean_loss, names)
    turned = {place: is_transposed(model.get_submodule(place)) for place in places}
    return {p: found[f"{p}.weight"].T if turned[p] else found[f"{p}.weight"] for p in places}


def _loss_of(model: nn.Module, tokens: Tensor) -> float:
    with torch.no_grad():
        losses = [float(mean_loss(model, part)) * len(part) for part in tokens.split(_SEQUENCES)]
    return sum(losses) / len(tokens)


def _write(
    checkpoint: CheckpointFiles, skeleton: ModelSkeleton, choice: KeptParts, out: Path
) -> None:
    names = _Names(skeleton, choice)
    smaller.check_loads(choice.config, dict(names.shapes(checkpoint)))
    writer = CompressedWriter(out, choice.config, source=checkpoint.directory, linears={})
    for name in checkpoint.names:
        new = names.of(name)
        if new is None:
            continue
        tensor = checkpoint.finite(name)
        if name in choice.cuts:
            dim, kept = choice.cuts[name]
            tensor = tensor.index_select(dim, kept).contiguous()
        elif name in choice.zeroed:
            dim, places = choice.zeroed[name]
            tensor = tensor.index_fill(dim, places, 0)
        writer.dense(new, tensor)
    writer.close()


class _Names:
    """The names of stored tensors in the smaller model."""

    def __init__(self, skeleton: ModelSkeleton, choice: KeptParts) -> None:
        self._choice = choice
        # Files may leave out a prefix that the model has (GPT-2: `h.0.` for `transformer.h.0.`).
        block = skeleton.block_prefix(0)
        target = next(target for target in skeleton.pieces if target.startswith(block))
        source = skeleton.pieces[target][0].source
        self._blocks = source.removesuffix(target.removeprefix(block)).removesuffix(".0.")

    def of(self, name: str) -> str | None:
        """The new name; None: it is pruned."""
        kept = self._choice.kept_layers
        return name if kept is None else layers.renamed(name, self._blocks, kept)

    def shapes(self, checkpoint: CheckpointFiles) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The shapes of all tensors that stay."""
        for name in checkpoint.names:
            new = self.of(name)
            if new is None:
                continue
            shape = list(checkpoint.shape(name))
            if name in self._choice.cuts:
                dim, kept = self._choice.cuts[name]
                shape[dim] = len(kept)
            yield new, tuple(shape)
