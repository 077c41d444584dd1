"""The way from tokens to logits without the model's own code around its layers, on a CPU.

What transformers does between embedding and head beside the layers (masks that blocks make
superfluous, outputs as dictionaries, options looked up) takes a tenth of a small model's decode
step. Where the layers are one operator (`stacked.py`) the rest is five calls. A trial decides: a
model that also scales embeddings or caps logits is called as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ridgeline.serve.cache.form import KvShape
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import KEYWORD, Pages
from ridgeline.serve.model.stacked import Stacked


class Direct:
    """Of one model, whose modules are looked up at each call: head and layers may be adapted."""

    def __init__(
        self, model: nn.Module, layers: Stacked, rotary: nn.Module, norm: nn.Module
    ) -> None:
        self._model = model
        self._layers = layers
        self._rotary = rotary
        self._norm = norm

    def states(self, tokens: Tensor, positions: Tensor, pages: Pages) -> Tensor:
        """[T] and [T] to [T, hidden]: what the head reads."""
        embedding: nn.Module = self._model.get_input_embeddings()  # type: ignore[operator]
        embedded = embedding(tokens)[None]
        angles = self._rotary(embedded, positions[None])
        inputs = {"position_embeddings": angles, KEYWORD: pages}
        states: Tensor = self._norm(self._layers.walk(embedded, **inputs))[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        """[R, hidden] to [R, V] in the model's dtype."""
        head: nn.Module = self._model.get_output_embeddings()  # type: ignore[operator]
        logits: Tensor = head(states)
        return logits


def direct(model: nn.Module, shapes: Sequence[KvShape], vocab: int) -> Direct | None:
    """The short way of a model with stacked layers, where it gives the model's own logits."""
    base: nn.Module = model.base_model  # type: ignore[assignment]
    layers = [child for child in base.children() if isinstance(child, Stacked)]
    rotary, norm = getattr(base, "rotary_emb", None), getattr(base, "norm", None)
    if len(layers) != 1 or rotary is None or norm is None:
        return None
    made = Direct(model, layers[0], rotary, norm)

    def forward(tokens: Tensor, positions: Tensor, pages: Pages, rows: Tensor) -> Tensor:
        return made.logits(made.states(tokens, positions, pages)[rows])

    own = trial.logits_over_blocks(model, list(shapes), vocab)
    return made if trial.computes(model, list(shapes), vocab, own, forward) else None
