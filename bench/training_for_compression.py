"""What training knows to do for a smaller model, beside what is done to a finished one.

    python bench/training_for_compression.py rounded /usr/lib/python3.11
    python bench/training_for_compression.py pruned /usr/lib/python3.11
    python bench/training_for_compression.py tickets /usr/lib/python3.11

Held-out loss of `examples/models/library`, nats a token. `rounded` goes on from that model for 400
steps, taught by it, so that it can win back what rounding loses and no more. `pruned` goes on for
as many steps on the labels, and so does a run that does not prune: what a compression of it loses
is what the others are held against. `tickets` begins at random weights. Some ten minutes on one
core each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from library_runs import MODEL, ROOT, compressed, held_out_loss, texts, trained
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

SHAPE = ROOT / "examples" / "recipes" / "library"
STEPS = 400
COURSE = 300
SHARE = 0.8
GO_ON = {
    "model.config": MODEL,
    "model.checkpoint": MODEL,
    "data.tokenizer": MODEL,
    "optimizer.learning_rate": 0.005,
    "optimizer.adam_learning_rate": 1e-3,
    "run.steps": STEPS,
    "run.evaluate_every": 0,
}
TAUGHT = {
    "distillation.teacher": MODEL,
    "distillation.soft_weight": 1.0,
    "distillation.temperature": 1.0,
    "optimizer.learning_rate": 0.002,
    "optimizer.adam_learning_rate": 4e-4,
}
FROM_START = {
    "model.config": SHAPE,
    "data.tokenizer": MODEL,
    "run.steps": COURSE,
    "run.evaluate_every": 0,
}
Report = Callable[[str, float], None]


def rounded(library: Path, folder: Path, report: Report) -> None:
    """Trained with rounded weights, and rounded without training."""
    seen, held = texts(library, folder)
    report("as given", held_out_loss(MODEL, held))
    for weights, grid in (("w3a16", "g32"), ("w4a16", "channel")):
        own = f"{weights}-rtn-{grid}"
        for scheme in (own, f"{weights}-gptq-{grid}-actorder"):
            small = compressed(MODEL, folder / scheme, [scheme], seen)
            report(scheme, held_out_loss(small, held))
        run = folder / f"{own}-run"
        trained(run, GO_ON | TAUGHT | {"data.path": library, "quantisation.scheme": own})
        small = compressed(run / "model", folder / f"{own}-trained", [own], seen)
        report(f"{own}, trained rounded", held_out_loss(small, held))


def pruned(library: Path, folder: Path, report: Report) -> None:
    """Pruned while it goes on learning, and at once."""
    seen, held = texts(library, folder)
    shared = GO_ON | {"data.path": library}
    trained(folder / "dense", shared)
    report("trained on", held_out_loss(folder / "dense" / "model", held))
    course = {"pruning.begin_step": 0, "pruning.end_step": STEPS // 2, "pruning.every_steps": 10}
    patterns = {"50%": {"pruning.share": 0.5}, "2:4": {"pruning.pattern": [2, 4]}}
    for name, pattern in patterns.items():
        for start, model in (("as given", MODEL), ("trained on", folder / "dense" / "model")):
            scheme = f"{name}-sparsegpt"
            small = compressed(model, folder / f"{start}-{name}", [scheme], seen)
            report(f"{start}, {scheme}", held_out_loss(small, held))
        trained(folder / name, shared | pattern | course)
        report(f"pruned while training, {name}", held_out_loss(folder / name / "model", held))


def tickets(library: Path, folder: Path, report: Report) -> None:
    """A winning ticket, and its mask over other random weights."""
    shared = FROM_START | {"data.path": library}
    lottery = {"lottery.share": SHARE, "lottery.rounds": 2, "lottery.rewind_step": 0}
    report("dense", trained(folder / "dense", shared))
    report("winning ticket", trained(folder / "ticket", shared | lottery))
    winner = AutoModelForCausalLM.from_pretrained(folder / "ticket" / "model")
    masks = {name: one != 0 for name, one in winner.named_parameters() if "_proj" in name}
    _sparse_start(folder / "other", masks)
    kept = {"pruning.share": SHARE, "pruning.end_step": 0, "model.checkpoint": folder / "other"}
    report("its mask, other weights", trained(folder / "other-run", shared | kept))


def _sparse_start(folder: Path, masks: dict[str, Tensor]) -> None:
    """Random weights under masks: the zeros are the smallest, and `[pruning]` keeps them."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SHAPE))
    for name, parameter in model.named_parameters():
        if name in masks:
            parameter.data.mul_(masks[name])
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)


def main() -> None:
    parts = {one.__name__: one for one in (rounded, pruned, tickets)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=parts)
    parser.add_argument("library", type=Path, help="Where this Python keeps its library.")
    given = parser.parse_args()

    def report(what: str, loss: float) -> None:
        print(f"{what:<44} {loss:.4f}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        parts[given.part](given.library, Path(folder), report)


if __name__ == "__main__":
    main()
