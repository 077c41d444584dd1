"""What each layer costs when it alone is compressed: the layer is swapped into the model as given.

The price is the mean KL from the model as given over a few windows. KL, because it is above 0 for
every change and a loss is not: on little text a rounded layer can predict better by luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import place_module
from ridgeline.compress.evaluate.quality import ROWS
from ridgeline.compress.evaluate.text import Window
from ridgeline.records.compression import LayerLoss

MOST_TOKENS = 4096
MOST_BYTES = 2**29
"""The most bytes that the probabilities of the model as given take, which are kept."""


class LayerProbe:
    """A model whose predictions on a few windows are known, to be compared with changed ones."""

    def __init__(self, model: nn.Module, tokens: Tensor, found: Sequence[Window]) -> None:
        self.model = model
        length = found[0].end - found[0].begin
        vocab = int(model.config.get_text_config().vocab_size)  # type: ignore[union-attr,operator]
        most = min(MOST_TOKENS, MOST_BYTES // (4 * vocab))
        spread = max(1, len(found) * length // most)
        whole = [one for one in found[::spread] if one.end - one.begin == length]
        rows = torch.stack([tokens[one.begin : one.end] for one in whole])
        self._rows = rows[: max(1, most // length)].to(next(model.parameters()).device)
        self._known = self._log_probs()

    @property
    def num_tokens(self) -> int:
        """The tokens that each price is a mean over."""
        return self._rows.numel()

    @torch.inference_mode()
    def kl(self) -> float:
        """KL(as it was ‖ as the model is now), nats a token."""
        now = self._logits()
        total = 0.0
        for start in range(0, len(now), ROWS):
            known = self._known[start : start + ROWS]
            log_probs = now[start : start + ROWS].float().log_softmax(1)
            total += float((known.exp() * (known - log_probs)).sum().double())
        return max(0.0, total / len(now))

    @torch.inference_mode()
    def _log_probs(self) -> Tensor:
        return self._logits().float().log_softmax(1)

    def _logits(self) -> Tensor:
        found: Tensor = self.model(input_ids=self._rows, use_cache=False).logits
        return found.flatten(0, 1)


def layer_losses(
    watched: LayerProbe, compressed: nn.Module, layers: Iterable[Sequence[str]], scheme: str
) -> Iterator[LayerLoss]:
    """The price of each group of layers, the others left as they are.

    Args:
        watched: The model as given.
        compressed: The same model, compressed; it has been called before.
        layers: Names; layers of a group are swapped together.
        scheme: Its name, for the result.
    """
    for names in layers:
        with swapped(watched.model, compressed, names):
            yield LayerLoss(layer=" + ".join(names), scheme=scheme, kl=watched.kl())


@contextmanager
def swapped(model: nn.Module, other: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Within, these layers are those of the other model."""
    own = {name: model.get_submodule(name) for name in names}
    try:
        for name in names:
            place_module(model, name, other.get_submodule(name))
        yield
    finally:
        for name, module in own.items():
            place_module(model, name, module)


def common_layers(model: nn.Module, other: nn.Module) -> list[str]:
    """Linear layers that both have in the same shape and whose weights are not the same.

    A layer that was pruned, or made smaller with its neighbours, cannot be swapped alone.
    """
    others = dict(other.named_modules())
    found = []
    for name, module in model.named_modules():
        twin = others.get(name)
        if not isinstance(module, nn.Linear) or not isinstance(twin, nn.Linear):
            continue
        if module.weight.shape == twin.weight.shape and not torch.equal(module.weight, twin.weight):
            found.append(name)
    return found
