"""A model that sees its first and its recent tokens only, to judge what that costs.

The mask of `ridgeline serve --kv-recent`, over dense attention in transformers: each token sees the
first tokens of its window of text and a number of last ones, itself among them. Layers with a
window of their own see the smaller of the two, and no first tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.records.compression import KeptTokensSeen

NAME = "ridgeline_first_and_recent"
"""The name under which transformers knows the attention."""


@contextmanager
def sees_only(model: nn.Module, seen: KeptTokensSeen) -> Iterator[None]:
    """Within, the model attends under the mask; afterwards as before.

    Raises:
        InputError: The model's attention cannot be exchanged, or does not reach the mask.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    calls = 0

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **given: Any
    ) -> tuple[Tensor, None]:
        nonlocal calls
        calls += 1
        given.pop("attention_mask", None)
        window = given.pop("sliding_window", None)
        mask = first_and_recent(query.shape[2], seen, window, query.device)
        return sdpa_attention_forward(module, query, key, value, mask, **given)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    before = model.config._attn_implementation  # type: ignore[union-attr]
    try:
        model.set_attn_implementation(NAME)  # type: ignore[operator]
        with torch.inference_mode():
            model(torch.zeros(1, 2, dtype=torch.int64, device=model.device), use_cache=False)
        if not calls:
            raise InputError("--kv-recent: this model has attention of its own, out of reach")
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


def first_and_recent(
    tokens: int, seen: KeptTokensSeen, window: int | None, device: torch.device
) -> Tensor:
    """[1, 1, T, T]: which token (row) sees which (column)."""
    at = torch.arange(tokens, device=device)
    behind = at[:, None] - at
    recent = behind < min(seen.recent, window or seen.recent)
    if window is None:
        recent |= at < seen.first
    return ((behind >= 0) & recent)[None, None]
