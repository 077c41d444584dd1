"""`ridgeline train` on this machine's GPU: each precision and memory choice, as one Markdown table.

    python bench/gpu/train_recipes.py [STEPS]

Correctness first: with fp32 products the losses of the GPU are those of the host. Then speed: the
same model in each setting, median step after warm-up, MFU, and peak memory beside the prediction.
"""

from __future__ import annotations

import json
import math
import os
import sys
import sysconfig
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.errors import RidgelineError
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import read_recipe
from ridgeline.records.training_run import TrainingRun
from ridgeline.train.start import train_recipe

STEPS, WARM = 40, 10
WIDE = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
}
NARROW = WIDE | {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
                 "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
RECIPE = """
[model]
config = "wide"
[data]
path = "{text}"
pattern = "*.py"
tokenizer = "bpe:2048"
seq = 2048
[layout]
micro_batch = 4
global_batch = 4
compiled = false
[optimizer]
learning_rate = 3e-4
final_learning_rate = 3e-4
schedule = "constant"
warmup_steps = 0
[checkpoint]
keep = 0
[run]
steps = {steps}
"""
SETTINGS = {
    "bf16": [],
    "bf16, compiled": ["layout.compiled=true"],
    "fp8, compiled": ["layout.compiled=true", "layout.precision=fp8"],
    "bf16, selective": ["layout.recompute=selective"],
    "bf16, full": ["layout.recompute=full"],
    "bf16, activations offloaded": ["memory.offload_activations=true"],
}


def on_host(recipe: Recipe, folder: Path) -> TrainingRun:
    return train_recipe(recipe, folder, environment=os.environ | {"CUDA_VISIBLE_DEVICES": ""})


def same_losses(folder: Path) -> float:
    """How far the GPU's last loss is from the host's, both from the same weights."""
    place = folder / "narrow"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place)).save_pretrained(place)
    narrow = read_recipe(
        folder / "recipe.toml",
        [f"model.config={place}", f"model.checkpoint={place}", "layout.precision=fp32",
         "data.seq=128", "run.steps=10"],
    )  # fmt: skip
    host = on_host(narrow, folder / "host").final_loss
    gpu = train_recipe(narrow, folder / "gpu").final_loss
    return abs(host - gpu) / host


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"{name}, torch {torch.__version__}, {datetime.now(UTC).date()}\n")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for kind, config in (("wide", WIDE), ("narrow", NARROW)):
            (folder / kind).mkdir()
            (folder / kind / "config.json").write_text(json.dumps(config))
        text = RECIPE.format(text=sysconfig.get_path("stdlib"), steps=steps)
        (folder / "recipe.toml").write_text(text)
        wide = f"model.config={folder / 'wide'}"
        off = same_losses(folder)
        print(f"fp32 losses on the GPU and on the host differ by {off:.1e}\n")
        if not off < 1e-3:
            sys.exit("bench/gpu/train_recipes.py: the GPU trains something else")
        print("| setting | ms a step | tokens/s | MFU | peak GB | predicted GB | loss |")
        print("|---|---|---|---|---|---|---|")
        for setting, changes in SETTINGS.items():
            try:
                run = train_recipe(
                    read_recipe(folder / "recipe.toml", [wide, *changes]), folder / "out"
                )
            except RidgelineError as error:
                print(f"| {setting} | {error} | | | | | |")
                continue
            step = median(run.step_samples[WARM:])
            mfu = math.nan if run.mfu is None else run.mfu
            memory = run.peak_memory_bytes
            print(
                f"| {setting} | {step * 1e3:.1f} | {4 * 2048 / step:,.0f} | {mfu:.1%} "
                f"| {(memory.measured or math.nan) / 1e9:.2f} "
                f"| {(memory.predicted or math.nan) / 1e9:.2f} | {run.final_loss:.3f} |"
            )


if __name__ == "__main__":
    main()
