"""torchao on one model: python torchao_run.py JOB.json; prints seconds as JSON.

Rounds to nearest (`IntxWeightOnlyConfig`) and saves the weights that come of it, dequantised, as a
plain model: what is compared is the rounding. JOB as for llmcompressor_run.py.
"""

import json
import sys
import time

import torch
from torch import nn
from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto")
    granularity = PerGroup(job["group"]) if job["group"] else PerAxis(0)
    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{job['bits']}"), granularity=granularity
    )
    quantize_(
        model, config, lambda module, name: isinstance(module, nn.Linear) and name != "lm_head"
    )
    for module in model.modules():
        if isinstance(module, nn.Linear) and hasattr(module.weight, "dequantize"):
            module.weight = nn.Parameter(module.weight.dequantize(), requires_grad=False)
    model.save_pretrained(job["out"])
    AutoTokenizer.from_pretrained(job["model"]).save_pretrained(job["out"])
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
