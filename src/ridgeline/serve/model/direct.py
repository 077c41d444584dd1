"""The way from tokens to logits past a model's own code, all its layers in one operator, on a CPU.

What transformers does between embedding and head (modules called one by one, masks that blocks make
superfluous, outputs as dictionaries, options looked up) takes longer in a small model's decode step
than the arithmetic. Here it is five calls. The model stays whole beside it: steps with an adapter
go through it, and so does whatever looks at single layers. A trial decides: a model that also
scales embeddings outside of its embedding or caps logits is called as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ridgeline.kernels.decoder_layers import Layers, decoder_layers
from ridgeline.serve.cache.form import KvShape
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import Attended, Pages
from ridgeline.serve.model.stacked import NotInOne, layers_in_one


class Direct:
    """Of one model, whose embedding and head are looked up at each call: they may be adapted."""

    def __init__(
        self, model: nn.Module, layers: Layers, rotary: nn.Module, norm: nn.Module
    ) -> None:
        self._model = model
        self._layers = layers
        self._rotary = rotary
        self._norm = norm

    def states(self, tokens: Tensor, positions: Tensor, pages: Pages) -> Tensor:
        """[T] and [T] to [T, hidden]: what the head reads."""
        embedding: nn.Module = self._model.get_input_embeddings()  # type: ignore[operator]
        embedded = embedding(tokens)[None]
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
    model: nn.Module, shapes: Sequence[KvShape], vocab: int, calls: Sequence[Attended]
) -> Direct:
    """The short way of a model, where it gives the model's own logits.

    Args:
        model: With the paged attention switched on, its modules fused.
        shapes: Key-value heads and head size of each layer.
        vocab: Words.
        calls: How each layer calls the attention.

    Raises:
        NotInOne: It has none, and why.
    """
    layers = layers_in_one(model, shapes, calls)
    base: nn.Module = model.base_model  # type: ignore[assignment]
    rotary, norm = getattr(base, "rotary_emb", None), getattr(base, "norm", None)
    if rotary is None or norm is None:
        raise NotInOne(f"{type(base).__name__} has no rotary_emb or no norm around them")
    made = Direct(model, layers, rotary, norm)

    def forward(tokens: Tensor, positions: Tensor, pages: Pages, rows: Tensor) -> Tensor:
        return made.logits(made.states(tokens, positions, pages)[rows])

    own = trial.logits_over_blocks(model, list(shapes), vocab)
    refusal = trial.refusal(model, list(shapes), vocab, own, forward)
    if refusal is not None:
        raise NotInOne(refusal)
    return made
