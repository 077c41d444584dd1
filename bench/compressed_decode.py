"""Decoding of int8 and int4 models beside the bf16 one that they were made from, on this machine.

    python bench/compressed_decode.py [--model DIR] [--rounds 24] [--threads N] [--batch 1]
    python bench/compressed_decode.py --schemes kv8 kvfp8 --kv-dtypes int8 fp8 --context 4096

Without --model a Llama of 125 million random weights in bf16 is made: decoding reads the same bytes
as a trained one of its shape. Every model is saved by `ridgeline compress`, loaded by the engine of
`ridgeline serve`, and decodes in turns with the others; ratios are Hodges-Lehmann estimates over
the rounds with their 95 % intervals, above 1 where the compressed model is faster. --kv-dtypes adds
the given model with its keys and values rounded as they come. Needs an idle machine.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from msgspec.structs import replace

from ridgeline.compress.apply import steps
from ridgeline.compress.evaluate.judge import speedup
from ridgeline.records.compression import Decoding
from ridgeline.records.scheme_names import parse
from ridgeline.report.views.evaluate import speedup_text
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.decode_bench import decode_in_turns

SCHEMES = ("w8a16-channel", "w8a8", "w4a16-g128", "w4a16-g32")
KV_BYTES = 2**29


def make(folder: Path) -> Path:
    """The model without one of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=16,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--schemes", nargs="*", default=SCHEMES)
    parser.add_argument("--kv-dtypes", nargs="*", default=())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = options.model or make(folder / "given")
        directories = {"bf16": model}
        shown = torch.randint(1000, (8, 64))  # ranges of random numbers: only speed is measured
        for name in options.schemes:
            (step,) = steps(model, [parse(name)], folder / name, shown, print)
            directories[name] = step.directory
        configs = {
            name: EngineConfig(
                model=str(one), dtype="bf16", kv_bytes=KV_BYTES, threads=options.threads
            )
            for name, one in directories.items()
        }
        for kind in options.kv_dtypes:
            configs[f"--kv-dtype {kind}"] = replace(configs["bf16"], kv_dtype=kind)
        found = decode_in_turns(
            list(configs.values()),
            batch=options.batch,
            context=options.context,
            rounds=options.rounds,
            on_progress=print,
        )
    answers = dict(zip(configs, found, strict=True))
    dense = answers["bf16"]
    assert isinstance(dense, Decoding), dense
    print("| model | tokens/s | read per step | over bf16 |\n|---|---|---|---|")
    for name, one in answers.items():
        if isinstance(one, str):
            print(f"| {name} | {one} | | |")
            continue
        ratio = "" if one is dense else speedup_text(speedup(dense, one))
        read = f"{one.read_bytes / 1e6:.0f} MB"
        print(f"| {name} | {one.tokens_per_second:.1f} | {read} | {ratio} |")
    print(f"{dense.threads} threads, {dense.machine_bytes_per_second / 1e9:.1f} GB/s read")


if __name__ == "__main__":
    main()
