"""llm-compressor on one model: python llmcompressor_run.py JOB.json; prints seconds as JSON.

Runs in an environment of its own (llm-compressor 0.14). JOB holds model, out, tokens (ids of the
calibration sequences), method (rtn, gptq, awq, smoothquant), bits, group (null: a scale per
output), act_order, and inputs (rounded too: 8 bits, a scale per token).
"""

import json
import sys
import time

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.awq import AWQModifier
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from llmcompressor.modifiers.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from transformers import AutoModelForCausalLM, AutoTokenizer


def recipe(job: dict) -> list:
    weights = {
        "num_bits": job["bits"],
        "type": "int",
        "symmetric": True,
        "strategy": "group" if job["group"] else "channel",
        "group_size": job["group"],
    }
    group = {"targets": ["Linear"], "weights": weights}
    if job["inputs"]:
        group["input_activations"] = {
            "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
        }  # fmt: skip
    common = {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    if job["method"] == "gptq":
        return [GPTQModifier(actorder="static" if job["act_order"] else None, **common)]
    if job["method"] == "awq":
        return [AWQModifier(**common)]
    if job["method"] == "smoothquant":
        return [SmoothQuantModifier(smoothing_strength=0.8), QuantizationModifier(**common)]
    return [QuantizationModifier(**common)]


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    if not torch.accelerator.is_available():
        # AWQ pins what it keeps, which without an accelerator is an error.
        IntermediatesCache.pin_memory = lambda *_: None
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    more = {}
    if job["method"] != "rtn":
        masks = [[1] * len(ids) for ids in job["tokens"]]
        more = {
            "dataset": Dataset.from_dict({"input_ids": job["tokens"], "attention_mask": masks}),
            "processor": tokenizer,
            "max_seq_length": len(job["tokens"][0]),
            "num_calibration_samples": len(job["tokens"]),
        }
    oneshot(model=model, recipe=recipe(job), **more)
    model.save_pretrained(job["out"])
    tokenizer.save_pretrained(job["out"])
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
