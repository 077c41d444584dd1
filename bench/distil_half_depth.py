"""How much of its gap to the teacher a student of half the depth makes up by being taught.

    python bench/distil_half_depth.py /usr/lib/python3.11 --steps 600

Both students are `examples/models/library` without the two layers that matter least, trained on the
same batches with the same learning rate; one of them is taught by the whole model
(`[distillation]`). Held-out loss, nats a token. Minutes on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer

from ridgeline.compress.pruning.structured.take_out import take_out
from ridgeline.records.scheme import Pruning

ROOT = Path(__file__).parents[1]
TEACHER = ROOT / "examples" / "models" / "library"
RECIPE = ROOT / "examples" / "recipes" / "library.toml"
TAUGHT = {
    "distillation.teacher": TEACHER,
    "distillation.soft_weight": 0.9,
    "distillation.temperature": 1.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="Where this Python keeps its library.")
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        student = folder / "student"
        pruning = Pruning(structure="layers", criterion="taylor", share=0.5)
        take_out(TEACHER, pruning, student, calibration(given.text))
        shared = {
            "data.path": given.text,
            "data.tokenizer": TEACHER,
            "optimizer.learning_rate": 0.01,
            "optimizer.adam_learning_rate": 2e-3,
            "run.evaluate_every": 0,
        }
        as_student = {**shared, "model.config": student, "model.checkpoint": student}
        as_student["run.steps"] = given.steps
        as_teacher = {**shared, "model.config": TEACHER, "model.checkpoint": TEACHER}
        # One step that moves nothing: the held-out loss of the teacher as it is.
        still = {"optimizer.learning_rate": 1e-12, "optimizer.adam_learning_rate": 1e-12}
        as_teacher |= {**still, "run.steps": 1, "optimizer.warmup_steps": 0}
        teacher = trained(folder / "teacher", as_teacher)
        alone = trained(folder / "alone", as_student)
        taught = trained(folder / "taught", as_student | TAUGHT)
    gained = (alone - taught) / (alone - teacher)
    print(f"teacher {teacher:.3f}, student alone {alone:.3f}, taught {taught:.3f}")
    print(f"of its gap to the teacher the taught student makes up {gained:.0%}")


def trained(out: Path, changes: dict[str, object]) -> float:
    """The held-out loss of a run of the recipe with changes."""
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "ridgeline.cli.main", "train", str(RECIPE), "--json"]
    done = subprocess.run(
        [*command, "--out", str(out), *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(json.loads(done.stdout)["validation_loss"])


def calibration(text: Path) -> torch.Tensor:
    """A few windows of text, to choose the layers by."""
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    files = sorted(text.glob("*.py"), key=lambda file: hashlib.sha256(file.name.encode()).digest())
    numbers = [
        number
        for file in files[:20]
        for number in tokenizer(file.read_text(errors="replace"))["input_ids"]
    ]
    return torch.tensor(numbers[: 16 * 256]).view(16, 256)


if __name__ == "__main__":
    main()
