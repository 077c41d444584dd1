"""Every parallel layout gives what one process gives: weights, gradients, 50 steps of losses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from tests.train.layout_worker import Course
from tests.train.processes import run_ranks
from tests.train.tiny_models import write_config

from ridgeline.records.layout import Layout

STEPS = 50
_WORKER = "tests.train.layout_worker:run_cases"
_BATCH = {"global_batch": 8, "precision": "fp32", "compiled": False}
ONE = Layout(micro_batch=8, **_BATCH)
FOUR: dict[str, Layout] = {
    name: Layout(**{"micro_batch": 2, **_BATCH, **layout})
    for name, layout in {
        "ddp": {"dp": 4},
        "ddp, accumulated": {"dp": 4, "micro_batch": 1},
        "ddp, recomputed": {"dp": 4, "recompute": "full"},
        "zero 1, accumulated": {"dp": 4, "fsdp": 4, "zero": 1, "micro_batch": 1},
        "zero 2, accumulated": {"dp": 4, "fsdp": 4, "zero": 2, "micro_batch": 1},
        "zero 3": {"dp": 4, "fsdp": 4, "zero": 3},
        "zero 3, accumulated": {"dp": 4, "fsdp": 4, "zero": 3, "micro_batch": 1},
        "zero 3, recomputed": {"dp": 4, "fsdp": 4, "zero": 3, "recompute": "full"},
        "zero 3, selective": {"dp": 4, "fsdp": 4, "zero": 3, "recompute": "selective"},
        "hybrid": {"dp": 4, "fsdp": 2, "zero": 3, "micro_batch": 1},
        "offload": {"dp": 4, "fsdp": 4, "zero": 3, "offload": "optimizer+parameters"},
        "dp x tp": {"dp": 2, "tp": 2},
        "zero 1 x tp, sp": {"dp": 2, "fsdp": 2, "zero": 1, "tp": 2, "sp": True},
        "zero 3 x tp": {"dp": 2, "fsdp": 2, "zero": 3, "tp": 2, "micro_batch": 4},
        "zero 3 x tp, sp": {"dp": 2, "fsdp": 2, "zero": 3, "tp": 2, "sp": True},
        "sp, recomputed": {"dp": 2, "tp": 2, "sp": True, "recompute": "full"},
        "cp": {"cp": 4},
        "dp x cp": {"dp": 2, "cp": 2},
        "zero 3 x cp": {"dp": 2, "cp": 2, "fsdp": 4, "zero": 3, "micro_batch": 1},
        "hybrid x cp": {"dp": 2, "cp": 2, "fsdp": 2, "zero": 3},
        "cp x tp, sp": {"cp": 2, "tp": 2, "sp": True},
        "pp, gpipe": {"pp": 4, "schedule": "gpipe"},
        "pp, 1f1b": {"pp": 4},
        "dp x pp, interleaved": {"dp": 2, "pp": 2, "vpp": 2, "schedule": "interleaved"},
        "dp x pp, zero-bubble": {"dp": 2, "pp": 2, "vpp": 2, "schedule": "zero-bubble"},
        "zero 1 x pp": {"dp": 2, "fsdp": 2, "zero": 1, "pp": 2, "micro_batch": 1},
        "pp x tp": {"pp": 2, "tp": 2},
        "pp x tp, sp": {"pp": 2, "tp": 2, "sp": True},
        "pp x cp": {"pp": 2, "cp": 2},
    }.items()
}
QUICK = (
    "zero 1, accumulated",
    "hybrid",
    "zero 3 x tp, sp",
    "zero 3 x cp",
    "pp x tp, sp",
)
"""Each dimension once; all of them run in `make test-all`."""
_SPREAD = {
    "ep": Layout(dp=4, ep=2, micro_batch=2, **_BATCH),
    "ep x zero 3": Layout(dp=4, fsdp=4, zero=3, ep=4, micro_batch=2, **_BATCH),
}
_SPLIT = {name: FOUR[name] for name in ("zero 3 x tp, sp", "dp x tp")}
_SPLIT_EXPERTS = {
    f"{name}, etp {etp}": msgspec.structs.replace(layout, etp=etp)
    for name, layout in _SPLIT.items()
    for etp in (1, 2)
}
OTHERS: dict[str, dict[str, Layout]] = {
    "llama-tied": _SPLIT | {name: FOUR[name] for name in ("pp, 1f1b", "pp x tp", "zero 1 x pp")},
    "qwen3": _SPLIT,
    "mixtral": _SPLIT_EXPERTS | _SPREAD,
    "qwen3-moe": _SPLIT_EXPERTS | _SPREAD,
    "gpt2": {name: FOUR[name] for name in ("ddp", "zero 3", "pp, 1f1b")},
}
"""Few steps are enough to see a family's wrong gradient."""


def check(course: Course, reference: Course, layout: Layout) -> None:
    """Weights bit by bit; what is summed in another order, within fp32 rounding."""
    staged = layout.pp > 1
    for mine, theirs in (
        (course.first_weights, reference.first_weights),
        (course.first_gradients, reference.first_gradients),
    ):
        assert mine.keys() <= theirs.keys()
        assert staged or mine.keys() == theirs.keys()
    for name, weight in course.first_weights.items():
        assert torch.equal(weight, reference.first_weights[name]), name
    for name, gradient in course.first_gradients.items():
        wanted = reference.first_gradients[name]
        error = float((gradient - wanted).norm() / wanted.norm())
        assert error < 1e-5, f"gradient of {name}: {error:.1e} off"
    assert course.losses == pytest.approx(reference.losses, rel=2e-5)
    assert course.norms == pytest.approx(reference.norms, rel=1e-3)
    assert course.validation == pytest.approx(reference.validation, rel=2e-5)
    experts = any("experts" in name for name in reference.first_weights)
    if layout.zero and not staged and not experts:
        # Norms are whole on each of the tp ranks, and dimensions do not divide evenly.
        share = reference.kept_elements / (layout.fsdp * layout.tp)
        assert course.kept_elements == pytest.approx(share, rel=0.2)


def compare(cases: dict[str, tuple[str, Layout]], steps: int) -> None:
    """Run all cases on four ranks, and each model once on one rank."""
    configs = sorted({config for config, _ in cases.values()})
    alone = {"steps": steps, "cases": [(config, ONE) for config in configs]}
    together = {"steps": steps, "cases": list(cases.values())}
    references = dict(zip(configs, run_ranks(1, _WORKER, alone)[0], strict=True))
    failures = []
    for rank, courses in enumerate(run_ranks(4, _WORKER, together, timeout_seconds=900)):
        for (name, (config, layout)), course in zip(cases.items(), courses, strict=True):
            try:
                check(course, references[config], layout)
            except AssertionError as error:
                failures.append(f"{name}, rank {rank}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_layouts_train_as_one_process_does(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, "llama"))
    compare({name: (config, FOUR[name]) for name in QUICK}, 3)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(1200)
def test_every_layout_trains_as_one_process_does_for_fifty_steps(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, "llama"))
    compare({name: (config, layout) for name, layout in FOUR.items()}, STEPS)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(1200)
def test_other_families_train_as_one_process_does(tmp_path: Path) -> None:
    cases = {
        f"{family}, {name}": (str(write_config(tmp_path, family)), layout)
        for family, layouts in OTHERS.items()
        for name, layout in layouts.items()
    }
    compare(cases, 4)
