"""Tiny models of every family by one table of sizes, for the suite and the page of families."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

SIZES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
LARGEST_PARAMETERS = 20_000_000
"""A family that is larger with the sizes of the table has none there."""


def sizes_of(family: str, table: str = "every") -> dict[str, Any]:
    """The sizes in a table of the fields that a family's configuration has."""
    known = AutoConfig.for_model(family)
    names = {*known.to_dict(), *known.attribute_map}
    found = {name: size for name, size in SIZES[table].items() if name in names}
    if "kv_lora_rank" in names and "num_key_value_heads" in found:  # latent: one for every head
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found | (SIZES.get(family, {}) if table == "every" else {})


def tiny(family: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A family's model with random weights, in evaluation.

    Weights are larger than usual, so that attention is not flat.

    Raises:
        ValueError: The table's sizes do not make it tiny.
    """
    config = AutoConfig.for_model(family, **{**sizes_of(family), **changes})
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        count = kind.from_config(config).num_parameters()
    if count > LARGEST_PARAMETERS:
        raise ValueError(f"{count:,} parameters: {Path(__file__).stem}.toml has no tiny sizes")
    torch.manual_seed(seed)
    model = kind.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    return model
