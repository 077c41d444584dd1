"""How busy the stages of `serve --pp` are, with one step under way and with one for each stage.

    python bench/serve_stages.py --rounds 6

Two engines of two stages, over a random Llama of 12 layers in float32, one thread a stage. Rounds
alternate between one step at a time, as it was, and as many as stages. Busy is a stage's CPU time
over the wall time of the round; on a machine that others use both fall, so what counts is the ratio
of neighbouring rounds. Tokens of both have to be equal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine import step_rows
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.engine.runner import Runner
from ridgeline.serve.messages import Delta, Sampling, Submit

PROMPT, COUNT = 32, 24


def write_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2048,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(engine: ServingEngine, name: str, requests: int) -> tuple[float, list[float], object]:
    """Wall seconds, each stage's CPU seconds, and all tokens."""
    for index in range(requests):
        prompt = tuple((7 * index + at) % 2000 + 3 for at in range(PROMPT))
        sampling = Sampling(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
        engine.handle(Submit(id=f"{name} {index}", prompt=prompt, sampling=sampling))
    assert engine._ranks is not None
    stages = [os.getpid(), *(one.pid for one in engine._ranks._processes)]
    before, began = [cpu_seconds(pid) for pid in stages], time.perf_counter()
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta), message
            tokens.setdefault(message.id.partition(" ")[2], []).extend(message.tokens)
    wall = time.perf_counter() - began
    after = [cpu_seconds(pid) for pid in stages]
    return wall, [b - a for a, b in zip(before, after, strict=True)], tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=8)
    given = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        config = EngineConfig(
            model=folder, dtype="fp32", device="cpu", threads=1, pp=2, kv_bytes=1 << 26,
            prefix_cache=False,
        )  # fmt: skip
        engine = ServingEngine(config)
        one_round(engine, "warm", given.requests)
        print(f"{'round':>5} {'steps under way':>15} {'wall s':>7} {'busy, stage 0 and 1':>20}")
        for index in range(given.rounds):
            with mock.patch.object(Runner, "overlaps", new=False):
                alone = one_round(engine, f"a{index}", given.requests)
            with mock.patch.object(step_rows, "LEAST_SEQUENCES", new=1):
                together = one_round(engine, f"b{index}", given.requests)
            assert alone[2] == together[2], "other tokens"
            shares = []
            for steps, (wall, cpu, _) in ((1, alone), (2, together)):
                shares.append(sum(cpu) / wall)
                busy = "  ".join(f"{one / wall:8.2f}" for one in cpu)
                print(f"{index:>5} {steps:>15} {wall:>7.2f} {busy:>20}")
            ratios.append(alone[0] / together[0])
            work = sum(together[1]) / sum(alone[1])
            print(
                f"      as fast {ratios[-1]:.2f} x, busy {shares[1] / shares[0]:.2f} x,"
                f" CPU time {work:.2f} x"
            )
        engine.close()
    print(f"median of {len(ratios)} rounds: {statistics.median(ratios):.2f} x as fast")


if __name__ == "__main__":
    main()
