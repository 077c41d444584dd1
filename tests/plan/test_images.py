"""Models of images: patches are the tokens, one position is classified, images a second."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ridgeline.cost.training.estimate import COVERAGE_80, IMAGE_SIGMA
from ridgeline.cost.training.workload import Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models import load_model
from ridgeline.models.sequence import image_tokens
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.estimate import estimate_question, predict_training
from ridgeline.plan.training.question import TrainingQuestion
from ridgeline.records.layout import Layout

SHAPES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12),
          "large": (1024, 24, 16), "huge": (1280, 32, 16)}  # fmt: skip
"""Of timm's ViTs: hidden size, layers, heads."""


def vit(name: str) -> ModelSpec | None:
    found = re.fullmatch(r"vit_(\w+)_patch(\d+)_(\d+)", name)
    if found is None or found[1] not in SHAPES:
        return None
    hidden, layers, heads = SHAPES[found[1]]
    return msgspec.structs.replace(
        load_model("ViT-B/16"), name=name, hidden=hidden, layers=layers, heads=heads,
        kv_heads=heads, head_dim=hidden // heads, ffn=4 * hidden, patch_size=int(found[2]),
        image_size=int(found[3]),
    )  # fmt: skip


def published() -> list[tuple[ModelSpec, int, float]]:
    """Model, batch and images a second of the table's training runs of ViTs."""
    for root in Path(__file__).parents:
        table = root / "shared" / "data" / "published_vision.csv.gz"
        if table.exists():
            break
    else:
        pytest.skip("the published table is not here (shared/data/published_vision.csv.gz)")
    with gzip.open(table, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "train"]
    known = [(vit(row["model"]), row) for row in rows if row["gpu"] == "RTX 3090"]
    return [
        (model, int(row["batch"]), float(row["metric_value"]))
        for model, row in known
        if model is not None
    ]


def images_per_second(model: ModelSpec, batch: int) -> float:
    """As timm measured: one device, eager, fp16."""
    layout = Layout(micro_batch=batch, global_batch=batch, precision="fp16", compiled=False)
    found = estimate_question(
        TrainingQuestion(
            model=model,
            cluster=parse_cluster("1xRTX 3090"),
            workload=Workload(seq=image_tokens(model)),
            layout=layout,
        )
    )
    assert found.images_per_second_per_gpu is not None
    return found.images_per_second_per_gpu


def test_published_training_of_vision_transformers_is_predicted_as_well_as_the_answer_says() -> (
    None
):
    runs = published()
    logs = np.array([np.log(rate / images_per_second(model, batch)) for model, batch, rate in runs])
    assert len(logs) == 33
    assert np.median(np.exp(-logs)) == pytest.approx(0.81, abs=0.01)  # the sentence in `assumed`
    assert np.mean(np.abs(logs) < COVERAGE_80 * IMAGE_SIGMA) > 0.8


def test_an_image_is_its_patches_and_one_class_token() -> None:
    layout = Layout(micro_batch=64, global_batch=64)
    found = predict_training("ViT-B/16", "1xH100", layout=layout)
    images = found.images_per_second_per_gpu
    assert images is not None
    assert images * 197 == pytest.approx(found.tokens_per_second_per_gpu)
    assert found.step_seconds == pytest.approx(64 / images)
    # 17.6 GMACs an image forward (published, timm), of which the patches' projection is 0.1.
    flops = found.mfu * found.step_seconds * 989.4e12
    assert flops == pytest.approx(64 * 3 * 2 * 17.58e9, rel=0.02)


def test_a_classifier_keeps_one_row_of_logits_for_each_image() -> None:
    found = predict_training("ViT-B/16", "1xH100", layout=Layout(micro_batch=64, global_batch=64))
    assert found.memory.stages[0].terms["logits"] == 64 * 1000 * 6


@pytest.mark.parametrize(
    ("model", "seq", "words"),
    [("ViT-B/16", 1024, "reads 197 tokens of each image"),
     ("gpt2", 4096, "learned positions for 1024 tokens; --seq 4096"),
     ("gpt2", None, "--seq is missing"),
     ("gpt2", 0, "must be 1 or more")],
)  # fmt: skip
def test_a_sequence_that_the_model_cannot_read_is_refused(
    model: str, seq: int | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        predict_training(model, "1xH100", seq=seq, layout=Layout())
