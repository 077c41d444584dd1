"""How much of its gap to the teacher a student of half the depth makes up by being taught.

    python bench/distil_half_depth.py /usr/lib/python3.11

Both students are `examples/models/library` without the two layers that matter least, trained on the
same batches for as many steps, each with the learning rates of `RATES` and judged by its best; one
of them is taught by the whole model (`[distillation]`). Held-out loss, nats a token. A quarter of
an hour on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from library_runs import MODEL, texts, trained
from transformers import AutoTokenizer

from ridgeline.compress.pruning.structured.prune import prune_units
from ridgeline.records.scheme import Pruning

RATES = (0.01, 0.02)
"""Of Muon; AdamW's is a fifth."""
TAUGHT = {
    "distillation.teacher": MODEL,
    "distillation.soft_weight": 0.9,
    "distillation.temperature": 1.0,
    "distillation.hidden_weight": 1.0,
}
_STILL = {
    "run.steps": 1,
    "optimizer.learning_rate": 1e-12,
    "optimizer.adam_learning_rate": 1e-12,
    "optimizer.warmup_steps": 0,
}
"""One step that moves nothing: the held-out loss of a model as it is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", type=Path, help="Where this Python keeps its library.")
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        student = folder / "student"
        seen, _ = texts(given.library, folder)
        pruning = Pruning(structure="layers", criterion="taylor", share=0.5)
        prune_units(MODEL, pruning, student, calibration(seen))
        shared: dict[str, object] = {"data.path": given.library, "data.tokenizer": MODEL}
        shared |= {"run.evaluate_every": 0, "run.steps": given.steps}
        teacher = trained(folder / "teacher", shared | of(MODEL) | _STILL)
        start = trained(folder / "start", shared | of(student) | _STILL)
        print(f"teacher {teacher:.4f}, student before training {start:.4f}")
        best = {}
        for who, more in (("alone", {}), ("taught", TAUGHT)):
            losses = {
                rate: trained(folder / f"{who}{rate}", shared | of(student) | rates(rate) | more)
                for rate in RATES
            }
            best[who] = min(losses.values())
            print(who, ", ".join(f"rate {rate}: {loss:.4f}" for rate, loss in losses.items()))
    gained = (best["alone"] - best["taught"]) / (best["alone"] - teacher)
    print(f"of its gap to the teacher the taught student makes up {gained:.0%}")


def of(model: Path) -> dict[str, object]:
    return {"model.config": model, "model.checkpoint": model}


def rates(matrices: float) -> dict[str, object]:
    return {"optimizer.learning_rate": matrices, "optimizer.adam_learning_rate": matrices / 5}


def calibration(text: Path) -> torch.Tensor:
    """A few windows of text, to choose the layers by."""
    numbers = AutoTokenizer.from_pretrained(MODEL)(text.read_text()[:60_000])["input_ids"]
    return torch.tensor(numbers[: 16 * 256]).view(16, 256)


if __name__ == "__main__":
    main()
