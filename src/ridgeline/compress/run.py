"""Compresses a model directory, one decoder block in memory at a time, the output head last.

    staged = stage(CompressionJob(model=…, schemes=…, tokens=…, work=…))
    staged.emulated()       the compressed model as an nn.Module, to measure before saving
    staged.save(out)        in the compressed-tensors format

A block is loaded, compressed with the activations that the compressed blocks before it give
(`blocks.py`), written to a file of its own (`finished.py`), and sends the activations on. An
interrupted run reads the finished blocks back and sends the activations through them, which gives
the same numbers. The head is in `head.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_writer import CompressedWriter, check_scheme, check_together
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of, stored_dtypes
from ridgeline.checkpoints.skeleton import ModelSkeleton, is_read_packed
from ridgeline.compress import rounding
from ridgeline.compress.activations import round_activations
from ridgeline.compress.blocks import LoadedBlock, compress_block, multiplied_as_stored
from ridgeline.compress.finished import BlockLog, Finished, LayerDone, fingerprint_of
from ridgeline.compress.flow import Flow, arithmetic_of
from ridgeline.compress.head import compressed_head, is_head_wanted
from ridgeline.compress.heap import (
    everything_kept,
    large_blocks_given_back,
    large_blocks_used_again,
)
from ridgeline.compress.saved.unread import Forms, unread
from ridgeline.compress.watching.halfway import ForwardPass
from ridgeline.compress.watching.lanes import side_by_side
from ridgeline.errors import InputError
from ridgeline.records.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionJob:
    """A compression of one model directory."""

    model: Path
    """A Hugging Face directory with safetensors."""
    schemes: tuple[Scheme, ...]
    """Applied to each layer one after another: prunings, then at most one quantisation."""
    work: Path
    """Where finished blocks wait (by convention `<out>.partial`); found again after a kill."""
    tokens: Tensor | None = None
    """[sequences, length] int64 of calibration; None where no scheme looks at activations."""
    of_layer: Mapping[str, tuple[Scheme, ...]] = field(default_factory=dict)
    """Instead of `schemes`, by layer name (`model.layers.0.mlp.down_proj`); () leaves a layer as
    it is, a layer that is not named gets `schemes`."""
    importance: Mapping[str, Tensor] = field(default_factory=dict)
    """[out, in] by layer name, for prunings by Taylor's criterion (`pruning/ahead.py`)."""
    seed: int = 0

    def schemes_of(self, layer: str) -> tuple[Scheme, ...]:
        """In order; () where the layer stays as it is."""
        if layer in self.of_layer:
            return tuple(self.of_layer[layer])
        return tuple(scheme for scheme in self.schemes if not _ignores(scheme, layer))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDone:
    """One block of the model, for progress."""

    block: int
    num_blocks: int
    layers: tuple[LayerDone, ...]
    resumed: bool = False
    """It was done by an earlier run."""


class Staged:
    """A finished compression that is not saved yet."""

    def __init__(self, job: CompressionJob, skeleton: ModelSkeleton, log: BlockLog) -> None:
        self.job = job
        self._skeleton = skeleton
        self._log = log
        self._count = log.num_done()
        self.calibrated_in = "" if job.tokens is None else arithmetic_of(skeleton)
        """The arithmetic in which calibration went through the blocks; empty: none did."""
        self.layers: tuple[LayerDone, ...] = tuple(
            layer for number in range(self._count) for layer in log.read(number).layers
        )

    def unread(self) -> tuple[str, ...]:
        """What transformers does not read of what `save` writes, a line each."""
        quantised: dict[str, Forms] = {}
        for number in range(self._count):
            for layer, (weight, inputs) in self._log.read(number).quantised.items():
                quantised[layer] = (weight.format, inputs.format if inputs else None)
        return tuple(unread(self._skeleton.pieces, quantised))

    def emulated(self) -> nn.Module:
        """The whole model with weights as rounded, and activations rounded as the scheme says."""
        skeleton = ModelSkeleton(self._skeleton.checkpoint)
        skeleton.load(list(skeleton.pieces))
        places = {
            piece.saved_name: (target, piece)
            for target, pieces in skeleton.pieces.items()
            for piece in pieces
        }
        for number in range(self._count):
            block = self._log.read(number)
            for name, tensor in block.dense.items():
                target, piece = places[name]
                piece.saved(skeleton.value(target).detach()).copy_(tensor)
            for layer, (weight, scales) in block.quantised.items():
                target, piece = places[f"{layer}.weight"]
                piece.saved(skeleton.value(target).detach()).copy_(weight.dequantised())
                # transformers unpacks experts into one tensor, and leaves their inputs as they are.
                if scales is not None and piece.expert is None:
                    module = skeleton.model.get_submodule(target.removesuffix(".weight"))
                    round_activations(module, scales)
        skeleton.model.tie_weights()
        return skeleton.model

    def save(self, out: Path) -> None:
        """Write it as a compressed-tensors directory and remove `job.work`.

        Raises:
            InputError: There is something at `out`, or the format cannot hold a scheme.
        """
        with large_blocks_given_back():
            self._save(out)
        self._log.remove()

    def _save(self, out: Path) -> None:
        skeleton, checkpoint = self._skeleton, self._skeleton.checkpoint
        writer = CompressedWriter(
            out,
            checkpoint.config,
            source=checkpoint.directory,
            linears=_linears(skeleton),
            kv=next((scheme.kv for scheme in self.job.schemes if scheme.kv), None),
            read_packed=is_read_packed(skeleton.model),
        )
        blocks = [self._log.read(self._count - 1)] if self._has_head else []
        replaced = {f"{name}.weight" for block in blocks for name in block.quantised}
        for target, pieces in skeleton.pieces.items():
            for piece in pieces if skeleton.is_outside(target) else ():
                if piece.saved_name not in replaced:
                    writer.dense(piece.saved_name, checkpoint.read(piece.source))
        for number in range(self._count):
            block = self._log.read(number)
            for name, tensor in together_again(skeleton, number, block):
                writer.dense(name, tensor)
            for name, (weight, inputs) in block.quantised.items():
                writer.quantised(name, weight, inputs)
            for name, (keys, values) in block.cache.items():
                writer.cache(name, keys, values)
        writer.close()

    @property
    def _has_head(self) -> bool:
        return self._count > len(self._skeleton.blocks)


def stage(
    job: CompressionJob,
    progress: Callable[[BlockDone], None] | None = None,
    *,
    keeps_freed: bool = False,
) -> Staged:
    """Compress block by block into `job.work`.

    Args:
        job: What to do.
        progress: Called after each block.
        keeps_freed: Keep freed memory for the next block: quicker, at a peak of 1.4 to 2.1 times
            what `forecast` tells (three methods, sixteen layers).

    Raises:
        InputError: Files that cannot be read, weights that are inf or NaN, schemes that do not
            fit the model.
    """
    with everything_kept() if keeps_freed else large_blocks_given_back():
        return _staged(job, progress)


def _staged(job: CompressionJob, progress: Callable[[BlockDone], None] | None) -> Staged:
    skeleton = ModelSkeleton(CheckpointFiles(job.model))
    _check(job, skeleton)
    fingerprint = fingerprint_of(
        skeleton.checkpoint, job.schemes, dict(job.of_layer), job.tokens, job.seed
    )
    log = BlockLog(job.work, fingerprint)
    for target, pieces in skeleton.pieces.items():
        for piece in pieces if skeleton.is_outside(target) else ():
            skeleton.checkpoint.check_finite(piece.source)  # now, not after all blocks
    flow = None if job.tokens is None else Flow(skeleton, job.tokens)
    with _new_garbage_only():
        _blocks(job, skeleton, flow, log, progress)
    return Staged(job, skeleton, log)


@contextmanager
def _new_garbage_only() -> Iterator[None]:
    """Within, a collection looks at what was made since, not at libraries: that takes 0.25 s."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def _blocks(
    job: CompressionJob,
    skeleton: ModelSkeleton,
    flow: Flow | None,
    log: BlockLog,
    progress: Callable[[BlockDone], None] | None,
) -> None:
    """All blocks, and the head where a scheme is for it."""
    num_blocks = len(skeleton.blocks)
    done = log.num_done()
    has_head = is_head_wanted(skeleton, job.schemes_of)
    for number in range(num_blocks):
        block = skeleton.load_block(number, _as_stored(job, skeleton, flow, number))
        runs = () if flow is None else flow.passes(block, number)
        if number >= done:
            result = _compressed(job, skeleton, runs, number)
            log.write(number, result)
        else:
            result = log.read(number)
        if restore(skeleton, number, result):
            for run in runs:
                run.forget()
        if number + 1 < num_blocks or has_head:
            with large_blocks_used_again():
                side_by_side(_flow_on, runs)
        skeleton.unload_block(number)
        gc.collect()  # modes and what watches through them are cycles that hold the block's weights
        if progress is not None:
            layers = tuple(result.layers)
            progress(
                BlockDone(block=number, num_blocks=num_blocks, layers=layers, resumed=number < done)
            )
    if done <= num_blocks and has_head:
        log.write(num_blocks, compressed_head(skeleton, flow, job.schemes_of))


def _as_stored(
    job: CompressionJob, skeleton: ModelSkeleton, flow: Flow | None, number: int
) -> frozenset[str]:
    """The parameters of a block that are held as they are stored; the rest is float32."""
    if flow is None or not flow.in_bfloat16:
        return frozenset()
    return multiplied_as_stored(matrices_of(skeleton, number), job.schemes_of)


def _flow_on(_lane: int, run: ForwardPass) -> None:
    run.given.copy_(run.go_on())


def restore(skeleton: ModelSkeleton, number: int, result: Finished) -> bool:
    """A loaded block computes with what is saved of it; whether that is other than it had."""
    changed = False
    for target in skeleton.block_targets(number):
        for piece in skeleton.pieces[target]:
            view = piece.saved(skeleton.value(target).detach())
            name = piece.saved_name
            if name in result.dense:
                saved = result.dense[name].to(view.dtype)
            else:
                weight, _ = result.quantised[name.removesuffix(".weight")]
                saved = weight.dequantised().to(view.dtype)
            changed = changed or not torch.equal(view, saved)
            view.copy_(saved)
    return changed


def together_again(
    skeleton: ModelSkeleton, number: int, result: Finished
) -> Iterator[tuple[str, Tensor]]:
    """The dense tensors of a block; experts stay in one where the files had one of them.

    That is where none of them is quantised: they were pruned alone, or left as they are.
    """
    left = dict(result.dense)
    for target in skeleton.block_targets(number) if number < len(skeleton.blocks) else ():
        pieces = skeleton.pieces[target]
        names = [piece.saved_name for piece in pieces]
        if not pieces[0].is_cut or not all(name in left for name in names):
            continue
        whole = torch.empty(skeleton.value(target).shape, dtype=left[names[0]].dtype)
        for piece, name in zip(pieces, names, strict=True):
            piece.saved(whole).copy_(left.pop(name))
        yield pieces[0].source, whole
    yield from left.items()


def _compressed(
    job: CompressionJob, skeleton: ModelSkeleton, runs: tuple[ForwardPass, ...], number: int
) -> Finished:
    matrices = matrices_of(skeleton, number)
    loaded = LoadedBlock(
        module=skeleton.blocks[number],
        matrices=matrices,
        dtypes=stored_dtypes(skeleton, matrices),
        schemes={matrix.name: job.schemes_of(matrix.name) for matrix in matrices},
        runs=runs,
        head_dim=_head_dim(skeleton.blocks[number], skeleton.model.config),
        importance=job.importance,
    )
    result = compress_block(loaded)
    for target in skeleton.block_targets(number):
        for piece in skeleton.pieces[target]:
            if piece.saved_name.removesuffix(".weight") not in result.quantised:
                dtype = skeleton.checkpoint.dtype(piece.source)
                value = piece.saved(skeleton.value(target))
                result.dense[piece.saved_name] = value.to(
                    dtype, copy=True, memory_format=torch.contiguous_format
                )
    return result


def _head_dim(block: nn.Module, config: Any) -> int | None:
    """The width of a block's attention heads: its own (Gemma 4's differ), or the model's."""
    for module in block.modules():
        if isinstance(found := getattr(module, "head_dim", None), int):
            return found
    if getattr(config, "num_attention_heads", None):
        return int(config.hidden_size // config.num_attention_heads)
    return None


def _ignores(scheme: Scheme, layer: str) -> bool:
    return any(layer == name or layer.endswith(f".{name}") for name in scheme.ignore)


def _linears(skeleton: ModelSkeleton) -> dict[str, str]:
    """The stored name of each linear layer by its module's; a tied one has only that."""
    found = {}
    for name, module in skeleton.model.named_modules():
        if isinstance(module, nn.Linear):
            pieces = skeleton.pieces.get(f"{name}.weight")
            found[name] = pieces[0].saved_name.removesuffix(".weight") if pieces else name
    return found


def _check(job: CompressionJob, skeleton: ModelSkeleton) -> None:
    """What can be known to fail before any work is done."""
    used = {scheme.name: scheme for scheme in job.schemes}
    used |= {scheme.name: scheme for found in job.of_layer.values() for scheme in found}
    check_together(used.values())
    for scheme in used.values():
        check_scheme(scheme)
        if scheme.needs_calibration and job.tokens is None:
            raise InputError(
                f"{scheme.name} looks at what flows through the model; give a calibration text"
            )
        if scheme.pruning is not None and scheme.pruning.structure != "weights":
            raise InputError(
                f"{scheme.name} prunes whole {scheme.pruning.structure}, which is done before "
                "single weights are compressed"
            )
    names = {
        piece.saved_name.removesuffix(".weight")
        for pieces in skeleton.pieces.values()
        for piece in pieces
    }
    for layer in job.of_layer:
        if layer not in names:
            raise InputError(f"{job.model}: no layer {layer}")
    for number in range(len(skeleton.blocks)):
        for matrix in matrices_of(skeleton, number):
            for scheme in () if matrix.kept else job.schemes_of(matrix.name):
                if scheme.weights is not None:
                    rounding.check_depth(matrix.weight.shape[1], scheme.weights, matrix.name)
