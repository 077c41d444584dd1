"""torchao on one model: python torchao_run.py JOB.json; prints seconds as JSON.

Weights alone are rounded to nearest (`IntxWeightOnlyConfig`) and saved as what comes of it,
dequantised, as a plain model: what is compared is the rounding. Where inputs are rounded too, with
SmoothQuant (of torchao's prototypes, α = 0.5, its default) or without, nothing that others read can
be saved: the model is judged here, on the windows that JOB has as `judged`, and the perplexity is
printed. Else JOB is as for llmcompressor_run.py.
"""

import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torchao.prototype.smoothquant import SmoothQuantConfig
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    PerRow,
    quantize_,
)
from transformers import AutoModelForCausalLM, AutoTokenizer


def chosen(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and name != "lm_head"


def round_weights(model: nn.Module, job: dict) -> None:
    granularity = PerGroup(job["group"]) if job["group"] else PerAxis(0)
    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{job['bits']}"), granularity=granularity
    )
    quantize_(model, config, chosen)
    for module in model.modules():
        if isinstance(module, nn.Linear) and hasattr(module.weight, "dequantize"):
            module.weight = nn.Parameter(module.weight.dequantize(), requires_grad=False)


def round_inputs_too(model: nn.Module, job: dict) -> None:
    config = Int8DynamicActivationInt8WeightConfig(granularity=PerRow(), version=2)
    if job["method"] != "smoothquant":
        quantize_(model, config, chosen)
        return
    quantize_(model, SmoothQuantConfig(config, step="prepare"), chosen)
    for part in torch.tensor(job["tokens"]).split(8):
        model(part)
    quantize_(model, SmoothQuantConfig(config, step="convert"))


def perplexity(model: nn.Module, windows: list) -> float:
    lost, scored = 0.0, 0
    for window in windows:
        ids = torch.tensor([window])
        logits = model(ids).logits[0, :-1].float()
        lost += float(functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        scored += len(window) - 1
    return math.exp(lost / scored)


@torch.no_grad()
def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto")
    found = {}
    if job["inputs"]:
        round_inputs_too(model, job)
        found["seconds"] = time.perf_counter() - began
        found["perplexity"] = perplexity(model, job["judged"])
    else:
        round_weights(model, job)
        model.save_pretrained(job["out"])
        AutoTokenizer.from_pretrained(job["model"]).save_pretrained(job["out"])
        found["seconds"] = time.perf_counter() - began
    print(json.dumps(found))


if __name__ == "__main__":
    main()
