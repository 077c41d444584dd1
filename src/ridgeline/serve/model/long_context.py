"""One set of rotary frequencies for all sequences of models that have one for long contexts.

LongRoPE (Ding et al., 2402.13753; Phi 3 and 4) has two: one up to the context that the model was
first trained for, one beyond. transformers chooses by the longest position of a call. Where a call
has many sequences, a short one would then turn as the longest beside it, another time otherwise,
and meet keys that were turned by the other set. So the choice is made once, by the longest sequence
that may come, as vLLM makes it.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

KIND = "longrope"


def settle_frequencies(model: nn.Module, longest: int | None) -> str:
    """Let every position turn by one set of frequencies.

    Args:
        model: Of any family.
        longest: Tokens of the longest sequence that may come; None: as many as the model takes.

    Returns:
        A remark on the choice; empty where there is none to make.
    """
    remark = ""
    for module in model.modules():
        if getattr(module, "rope_type", None) == KIND:
            remark = _settle(module, longest)
    return remark


def _settle(rotary: Any, longest: int | None) -> str:
    trained = rotary.config.rope_parameters["original_max_position_embeddings"]
    if longest is None:
        longest = rotary.config.max_position_embeddings
    at = trained + 1 if longest > trained else trained
    device = rotary.inv_freq.device
    chosen, _ = ROPE_INIT_FUNCTIONS[KIND](rotary.config, device, seq_len=at)
    rotary.inv_freq.copy_(chosen)
    rotary.original_inv_freq.copy_(chosen)
    rotary.long_inv_freq = chosen
    if longest <= trained:
        return ""
    return f"turned for contexts beyond {trained}; --max-length {trained} turns them for short ones"
