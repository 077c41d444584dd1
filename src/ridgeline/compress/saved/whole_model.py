"""A saved directory as one module, token numbers to logits, its rounded weights in levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_tensors import WeightReader
from ridgeline.checkpoints.layers import place_module
from ridgeline.checkpoints.quantised import ActivationScales, Quantised
from ridgeline.checkpoints.skeleton import StoredPiece, owner_of, stored_pieces
from ridgeline.compress.activations import rounded_activations
from ridgeline.errors import RidgelineError
from ridgeline.models.folder import read_by_library

NEAR = 0.7
"""See `check_near`; 0.3 was measured on the library model."""


class LevelsLinear(nn.Module):
    """A linear layer that keeps its weight in levels and turns them into numbers as it computes."""

    levels: Tensor
    scales: Tensor

    def __init__(
        self, weight: Quantised, bias: Tensor | None, inputs: ActivationScales | None
    ) -> None:
        super().__init__()
        self.format, self.inputs = weight.format, inputs
        for name in ("levels", "scales", "zeros", "global_scale", "books"):
            self.register_buffer(name, getattr(weight, name))
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> Quantised:
        """The weight as it is stored."""
        optional = ("zeros", "global_scale", "books")
        parts: dict[str, Any] = {name: getattr(self, name) for name in optional}
        return Quantised(format=self.format, levels=self.levels, scales=self.scales, **parts)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        if self.inputs is not None:
            x = rounded_activations(x, self.inputs)
        return nn.functional.linear(x, self.weight.dequantised(x.dtype), self.bias)


class WholeModel(nn.Module):
    """[batch, tokens] int64 to logits [batch, tokens, vocabulary], without a cache."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, input_ids: Tensor) -> Tensor:
        """The logits of every position."""
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def whole_model(
    path: Path, dtype: torch.dtype | None = None, *, attention: str | None = "eager"
) -> WholeModel:
    """Read a directory as one module.

    Args:
        path: Dense or compressed-tensors.
        dtype: To compute with; None: as the directory says.
        attention: transformers' name of the implementation; None: its own choice.

    Raises:
        InputError: Damaged files, or a model whose tensors are stored in a way not known here.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    saved = WeightReader(path)
    with read_by_library(path, what="config.json makes no causal language model"):
        config = AutoConfig.from_pretrained(path)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        dtype = dtype or config.dtype or torch.float32
        chosen = {} if attention is None else {"attn_implementation": attention}
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **chosen).eval()
    for target, pieces in stored_pieces(model, saved).items():
        owner, leaf = owner_of(model, target)
        layer = pieces[0].source.removesuffix(".weight")
        linear = isinstance(owner, nn.Linear) and leaf == "weight" and len(pieces) == 1
        if linear and saved.is_quantised(layer):
            _put(saved, model, target.removesuffix(".weight"), layer)
        else:
            _fill(saved, getattr(owner, leaf), pieces)
    model.tie_weights()
    return WholeModel(model.requires_grad_(requires_grad=False), dtype).eval()


def free_shapes() -> dict[str, dict[int, Any]]:
    """Batch and tokens are free in what is exported."""
    return {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2)}}


def example(model: WholeModel, batch: int = 2, tokens: int = 8) -> Tensor:
    """Token numbers all over the vocabulary."""
    words = model.model.config.vocab_size  # type: ignore[union-attr]
    return (torch.arange(batch * tokens) * 7919 % words).reshape(batch, tokens)


def check_equal(
    model: WholeModel, run: Callable[[Tensor], Tensor], what: str, tolerance: float
) -> None:
    """Compare an export with the model it was made from, in shapes it was not made with.

    Raises:
        RidgelineError: Logits differ by more than `tolerance` of the largest.
    """
    for batch, tokens in ((1, 5), (3, 16)):
        ids = example(model, batch, tokens)
        with torch.no_grad():
            expected = model(ids).float()
        largest = float(expected.abs().max())
        differ = float((run(ids).float() - expected).abs().max())
        if not differ <= tolerance * largest:
            raise RidgelineError(
                f"{what} computes other logits than PyTorch, by {differ:.2g} of {largest:.2g}; "
                "nothing was written"
            )


def check_near(model: WholeModel, run: Callable[[Tensor], Tensor], what: str) -> None:
    """Compare an export of a model that rounds inputs per token, whose levels are not certain.

    The largest magnitude of a token lies half-way between two levels (127.5 steps of int8), so the
    last bit of a float moves it by one, in every layer. Two right computations differ by a third of
    what rounding inputs does; one that does not round them, by all of it.

    Raises:
        RidgelineError: Root mean squares of logits differ by more than `NEAR` of what rounding
            inputs does.
    """
    ids = example(model, 3, 16)
    with torch.no_grad():
        expected = model(ids)
        with _inputs_as_they_are(model):
            apart = float((model(ids) - expected).square().mean().sqrt())
    differ = float((run(ids) - expected).square().mean().sqrt())
    if not differ <= NEAR * apart:
        raise RidgelineError(
            f"{what} computes other logits than PyTorch, by {differ:.2g} where rounding inputs"
            f" changes them by {apart:.2g}; nothing was written"
        )


@contextmanager
def _inputs_as_they_are(model: nn.Module) -> Iterator[None]:
    layers = [module for module in model.modules() if isinstance(module, LevelsLinear)]
    kept = [layer.inputs for layer in layers]
    try:
        for layer in layers:
            layer.inputs = None
        yield
    finally:
        for layer, inputs in zip(layers, kept, strict=True):
            layer.inputs = inputs


def _put(saved: WeightReader, model: nn.Module, name: str, layer: str) -> None:
    """A linear layer in its levels, with its bias, which may be read before or after."""
    weight = saved.read(f"{layer}.weight")
    assert isinstance(weight, Quantised)
    old: Any = model.get_submodule(name)
    bias = None if getattr(old, "bias", None) is None else old.bias.data
    place_module(model, name, LevelsLinear(weight, bias, saved.activations(layer)))


@torch.no_grad()
def _fill(saved: WeightReader, values: Tensor, pieces: list[StoredPiece]) -> None:
    """A tensor as numbers; experts that are compressed are so, too, with inputs as they are."""
    for piece in pieces:
        found = saved.read(piece.source)
        stored = found.dequantised(values.dtype) if isinstance(found, Quantised) else found
        piece.placed(values.data).copy_(stored)
