"""Perplexity of compressed models as transformers computes them, and as the engine serves them.

    python bench/served_quality.py --calibration FOLDER --text FOLDER [--model DIR]
        [--schemes kv8 kvfp8 w4a16-g32-kv8 w8a8-static] [--kv-dtypes int8 fp8] [--windows 48]

Every scheme is applied as `ridgeline compress` does. transformers rounds activations and cache as
compressed-tensors does, in float32; the engine computes the same windows over its KV blocks with
its own kernels. Each row also tells how far the two are apart: the mean difference of logits over
their spread.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from ridgeline.compress.apply import steps
from ridgeline.compress.material import calibration_tokens
from ridgeline.records.scheme_names import parse
from ridgeline.serve.cache import KvPool
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.runner import one_prompt
from ridgeline.serve.model.load import load

LIBRARY = Path(__file__).parents[1] / "examples/models/library"
SCHEMES = ("kv8", "kvfp8", "w4a16-g32-kv8", "w8a8-static")
LENGTH, BLOCK = 256, 16


def in_transformers(directory: Path, windows: torch.Tensor) -> torch.Tensor:
    """Logits [windows, tokens, V]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.cat([model(window[None], use_cache=False).logits for window in windows])


def served(config: EngineConfig, windows: torch.Tensor) -> torch.Tensor:
    """The same from the engine's model."""
    loaded = load(config)
    blocks = -(-LENGTH // BLOCK)
    pool = KvPool(
        loaded.kv_shapes,
        num_blocks=blocks,
        block_size=BLOCK,
        form=loaded.kv_form,
        device=loaded.device,
    )
    batch = replace(one_prompt(LENGTH, blocks, loaded), logit_rows=torch.arange(LENGTH))
    with torch.inference_mode():
        return torch.stack(
            [loaded.forward(replace(batch, tokens=one), pool.layers).logits for one in windows]
        )


def perplexity(logits: torch.Tensor, windows: torch.Tensor) -> float:
    said, true = logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten()
    return float(functional.cross_entropy(said.float(), true).exp())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=LIBRARY)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--schemes", nargs="*", default=SCHEMES)
    parser.add_argument("--kv-dtypes", nargs="*", default=("int8", "fp8"))
    parser.add_argument("--windows", type=int, default=48)
    options = parser.parse_args()
    model = options.model
    shown = calibration_tokens(model, options.calibration, sequences=16, length=LENGTH)
    windows = calibration_tokens(model, options.text, sequences=options.windows, length=LENGTH)
    print("| model | transformers | served | apart |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        directories = {"as given": model}
        for name in options.schemes:
            (step,) = steps(model, [parse(name)], Path(place) / name, shown, lambda _: None)
            directories[name] = step.directory
        for name, directory in directories.items():
            theirs = in_transformers(directory, windows)
            ours = served(EngineConfig(model=str(directory), device="cpu", dtype="fp32"), windows)
            apart = float((ours - theirs).abs().mean() / theirs.std())
            both = (f"{perplexity(one, windows):.3f}" for one in (theirs, ours))
            print(f"| {name} | {' | '.join(both)} | {apart:.1e} |")
    for kind in options.kv_dtypes:
        config = EngineConfig(model=str(model), device="cpu", dtype="fp32", kv_dtype=kind)
        print(f"| --kv-dtype {kind} | | {perplexity(served(config, windows), windows):.3f} | |")


if __name__ == "__main__":
    main()
