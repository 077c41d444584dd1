"""The way from tokens to logits past a model's own code, all its layers in one operator, on a CPU.

What transformers does between embedding and head (modules called one by one, masks that blocks make
superfluous, outputs as dictionaries, options looked up) takes longer in a small model's decode step
than the arithmetic. Here it is five calls. The model stays whole beside it: steps with an adapter
go through it, and so does whatever looks at single layers. A trial decides: a model that also
scales embeddings outside of its embedding or caps logits is called as it is.

As with single modules (`fused.py`), the names of classes play no part: layers must have the
children that a Llama has, and be alike. They stay where they are, in a plain list: whoever asks the
model for them, for their outputs or for a slice of them gets what transformers made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.decoder_layers import LINEARS, READERS, Layers, decoder_layers
from ridgeline.serve.cache import KvShape
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import Attended, Pages
from ridgeline.serve.model.llama_like import NotInOne, llama_like
from ridgeline.serve.weights.linears import DenseLinear, GroupedLinear, W8A8Linear


def layers_in_one(model: nn.Module, shapes: Sequence[KvShape], calls: Sequence[Attended]) -> Layers:
    """The weights of all layers, once the model's modules are fused.

    Args:
        model: With the paged attention switched on.
        shapes: Key-value heads and head size of each layer.
        calls: How each layer calls the attention.

    Raises:
        NotInOne: The operator does not compute such layers.
    """
    if next(model.parameters()).is_cuda:
        raise NotInOne("the operator for all of them is for CPUs")
    found = llama_like(model, shapes, calls)
    linears = found.linears
    if not all(_is_multiplied(one) for one in linears):
        raise NotInOne(
            f"a {found.layer_name} has linear layers that the operator for all does not multiply"
        )
    return Layers(
        panels=[linear.get_buffer("panels") for linear in linears],
        scales=[getattr(linear, "scales", None) for linear in linears],
        offsets=[getattr(linear, "sums", None) for linear in linears],
        steps=_steps(linears),
        biases=[linear.bias for linear in linears],
        norms=[norm.weight for norm in found.norms],
        head_norms=[None if norm is None else norm.weight for norm in found.head_norms],
        heads=found.heads,
        inner=found.inner,
        eps=found.norm.eps,
        offset=found.norm.offset,
        round_first=found.norm.round_first,
        gelu=found.gelu,
        scale=found.scale,
        windows=[call.window or 0 for call in calls],
        softcap=found.softcap,
    )


def _is_multiplied(linear: Any) -> bool:
    """A linear layer that the operator takes: symmetric, and its inputs fill the panels."""
    if isinstance(linear, W8A8Linear):
        return linear.in_features % 4 == 0
    if not isinstance(linear, DenseLinear | GroupedLinear) or linear.panels.is_cuda:
        return False
    if isinstance(linear, GroupedLinear) and linear.zeros is not None:
        return False
    if linear.panels.dtype == torch.float16:
        return False
    return linear.in_features % 2 == 0


def _steps(linears: Sequence[Any]) -> list[float]:
    """The steps of rounded activations, as `Layers` has them.

    Raises:
        NotInOne: Layers that read the same activations round them differently.
    """
    found = []
    for first in range(0, len(linears), len(LINEARS)):
        layer = dict(zip(LINEARS, linears[first : first + len(LINEARS)], strict=True))
        for names in READERS:
            steps = {one.step for name in names if isinstance(one := layer[name], W8A8Linear)}
            if len(steps) > 1:
                raise NotInOne(f"{', '.join(names)} round the same activations in unlike steps")
            found.append(next(iter(steps), None) or 0.0)
    return found


class Direct:
    """A short way through one model; its embedding and head are looked up at each call."""

    def __init__(
        self, model: nn.Module, layers: Layers, rotary: nn.Module, norm: nn.Module
    ) -> None:
        self._model = model
        self._layers = layers
        self._rotary = rotary
        self._norm = norm

    def states(
        self, tokens: Tensor, positions: Tensor, pages: Pages, embedded: Tensor | None = None
    ) -> Tensor:
        """[T] and [T] to [T, hidden]: what the head reads.

        Args:
            tokens: Token ids.
            positions: Of the tokens.
            pages: Blocks and caches.
            embedded: [T, hidden], where it is not what the model's table has for the tokens.
        """
        assert isinstance(pages.caches, list)
        if embedded is None:
            embedding: nn.Module = self._model.get_input_embeddings()  # type: ignore[operator]
            embedded = embedding(tokens)
        embedded = embedded[None]
        cos, sin = (one[0] for one in self._rotary(embedded, positions[None]))
        found = decoder_layers(embedded[0], cos, sin, self._layers, pages.caches, pages.packed)
        states: Tensor = self._norm(found[None])[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        """[R, hidden] to [R, V] in the model's dtype."""
        head: nn.Module = self._model.get_output_embeddings()  # type: ignore[operator]
        logits: Tensor = head(states)
        return logits


def direct(
    model: nn.Module,
    shapes: Sequence[KvShape],
    vocab: int,
    calls: Sequence[Attended],
    *,
    proven: bool = False,
) -> Direct:
    """The short way of a model, where it gives the model's own logits.

    Args:
        model: With the paged attention switched on, its modules fused.
        shapes: Key-value heads and head size of each layer.
        vocab: Words.
        calls: How each layer calls the attention.
        proven: An earlier start found that it does; it is not tried again.

    Raises:
        NotInOne: It has none, and why.
    """
    layers = layers_in_one(model, shapes, calls)
    base: nn.Module = model.base_model  # type: ignore[assignment]
    rotary, norm = getattr(base, "rotary_emb", None), getattr(base, "norm", None)
    if rotary is None or norm is None:
        raise NotInOne(f"{type(base).__name__} has no rotary_emb or no norm around them")
    made = Direct(model, layers, rotary, norm)
    if proven:
        return made

    def forward(tokens: Tensor, positions: Tensor, pages: Pages, rows: Tensor) -> Tensor:
        return made.logits(made.states(tokens, positions, pages)[rows])

    own = trial.logits_over_blocks(model, list(shapes), vocab)
    refusal = trial.refusal(model, list(shapes), vocab, own, forward)
    if refusal is not None:
        raise NotInOne(refusal)
    return made
