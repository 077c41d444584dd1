"""Codebooks as we save them, read and multiplied by the package aqlm on a CPU.

    pip install --no-deps --target SITE aqlm
    NUMBA_NUM_THREADS=1 PYTHONPATH=SITE python bench/aqlm_package.py

A tiny Llama of random weights is compressed by `aqlm2`. Prints, over its layers, the largest
difference of aqlm's dequantised weights from ours, and of its products from those with ours, for 1,
6 and 40 rows. aqlm's CPU kernel adds into one vector from all of its threads, so that with several
of them a product may be wrong (seen: off by 0.4 of numbers around 1).
"""

import importlib.metadata
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from ridgeline.compress.run import CompressionJob, stage
from ridgeline.records.scheme_names import parse

ROWS = (1, 6, 40)


def make(folder: Path) -> Path:
    """The model as given."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def main() -> None:
    from aqlm import QuantizedLinear
    from aqlm.utils import _dequantize_weight, unpack_int_data

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokens = torch.randint(128, (8, 64))
        job = CompressionJob(
            model=make(folder / "given"),
            schemes=(parse("aqlm2"),),
            work=folder / "blocks",
            tokens=tokens,
        )
        staged = stage(job)
        dense = dict(staged.emulated().named_parameters())
        staged.save(folder / "saved")
        saved = load_file(folder / "saved" / "model.safetensors")
        form = json.loads((folder / "saved" / "config.json").read_text())["quantization_config"]
    of_weights, of_products = 0.0, dict.fromkeys(ROWS, 0.0)
    for name in (key.removesuffix(".codes") for key in saved if key.endswith(".codes")):
        weight = dense[f"{name}.weight"].detach()
        parts = {part: saved[f"{name}.{part}"] for part in ("codes", "codebooks", "scales")}
        codes = unpack_int_data(parts["codes"], form["nbits_per_codebook"])
        theirs = _dequantize_weight(codes, parts["codebooks"], parts["scales"])
        of_weights = max(of_weights, float((theirs - weight).abs().max()))
        layer = QuantizedLinear(
            weight.shape[1],
            weight.shape[0],
            in_group_size=form["in_group_size"],
            out_group_size=form["out_group_size"],
            num_codebooks=form["num_codebooks"],
            nbits_per_codebook=form["nbits_per_codebook"],
            bias=False,
            dtype=torch.float32,
        )
        layer.load_state_dict(parts)
        for rows in ROWS:
            x = torch.randn(rows, weight.shape[1])
            with torch.no_grad():
                off = float((layer(x) - x @ weight.T).abs().max())
            of_products[rows] = max(of_products[rows], off)
    print(f"aqlm {importlib.metadata.version('aqlm')}: weights differ by {of_weights:g} at most")
    for rows, off in of_products.items():
        print(f"products of {rows} rows differ by {off:.2g} at most")


if __name__ == "__main__":
    main()
