"""How long a checkpoint holds a run up: beside the training, and as torch saves by itself.

    python bench/checkpoint_stall.py [ROUNDS]

A random Llama of more than 500 MB of fp32 weights (three times that with AdamW's moments) trains
on random tokens in one process. Each round saves once by `torch.distributed.checkpoint.save`,
fsynced, while the training waits, and once by `Saver`, while it goes on; steps run between and
during. Stall is what the loop waited: in `save`, and before the next update for the copy to host
memory. The last column is what steps lost while the write ran, which shares the machine with them.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from ridgeline.hardware.environment import environment
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
)
from ridgeline.records.recipe_survival import RecipeCheckpoint
from ridgeline.train.batch import Batch
from ridgeline.train.build import build
from ridgeline.train.checkpoint.saver import Saver
from ridgeline.train.checkpoint.state import RunState
from ridgeline.train.ranks import join, leave
from ridgeline.train.watch.phases import Phases

SEQ, VOCAB = 128, 16_000
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 9,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": SEQ,
    "tie_word_embeddings": True,
}
TWO_QUIET_STEPS = 2


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory(prefix="stall-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        measure(folder, rounds)


def measure(folder: Path, rounds: int) -> None:
    layout = Layout(precision="fp32", compiled=False)
    recipe = Recipe(
        model=RecipeModel(config=str(folder / "config.json")),
        data=RecipeData(path="none", seq=SEQ),
        layout=layout,
        optimizer=RecipeOptimizer(learning_rate=1e-4, final_learning_rate=1e-4),
        checkpoint=RecipeCheckpoint(every_steps=1, keep=1),
    )
    ranks = join(layout)
    built = build(recipe, ranks, Phases(ranks.device))
    parameters = sum(p.numel() for part in built.passes.modules for p in part.parameters())
    loader: Any = SimpleNamespace(state_dict=dict)
    state = RunState(built=built, loader=loader, ranks=ranks)
    saver = Saver(recipe, folder, ranks, state, print)
    saver.load_newest()
    print(
        f"{parameters / 1e6:.0f} M parameters, {parameters * 4 / 1e6:.0f} MB of weights,"
        f" {parameters * 12 / 1e6:.0f} MB with moments; torch {torch.__version__},"
        f" {environment().host_cpu}, {os.cpu_count()} cores"
    )
    print("round  synchronous  stall  share  written after  step alone  step during the write")
    steps, shares = 0, []
    step = Step(built, saver)
    step()
    # Makes the room in host memory once, as the first checkpoint of any run does.
    saver.save(1, 0, wait=True)
    for number in range(1, rounds + 1):
        alone = [step() for _ in range(TWO_QUIET_STEPS)]
        began = perf_counter()
        dcp.save(state.gather(), checkpoint_id=folder / "synchronous")
        synchronous = perf_counter() - began
        shutil.rmtree(folder / "synchronous")
        alone.append(step())
        steps = number + 1
        before = saver.stall_seconds
        began = perf_counter()
        saver.save(steps, 0)
        during = [step()]
        while not saver.due(steps) or saver._flight is not None:
            during.append(step())
        written = perf_counter() - began
        stall = saver.stall_seconds - before
        shares.append(stall / synchronous)
        print(
            f"{number:5}  {synchronous:9.2f} s  {stall * 1e3:4.0f} ms  {shares[-1]:4.1%}"
            f"  {written:10.1f} s  {median(alone):8.2f} s  {median(during):8.2f} s"
        )
    print(f"median share of a synchronous save: {median(shares):.1%}")
    saver.close()
    leave()


class Step:
    """One optimizer step, and the seconds that it took."""

    def __init__(self, built: Any, saver: Saver) -> None:
        self._built, self._saver = built, saver
        tokens = torch.randint(VOCAB, (1, SEQ + 1))
        self._batch = Batch(
            input_ids=tokens[:, :-1].contiguous(),
            labels=tokens[:, 1:].contiguous(),
            position_ids=torch.arange(SEQ).repeat(1, 1),
        )

    def __call__(self) -> float:
        """Run it."""
        began = perf_counter()
        self._built.passes.run([self._batch], SEQ)
        if self._saver.holds_up():
            self._saver.before_update()
        self._built.optimizer.step()
        self._built.optimizer.zero_grad(set_to_none=True)
        return perf_counter() - began


if __name__ == "__main__":
    main()
