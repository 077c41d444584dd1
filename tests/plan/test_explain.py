"""Explanations: the right winner, the terms that decide, the knobs that move them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.plan.tasks import a_mixture, a_model, a_task

from ridgeline.cost.training.estimate import estimate_training
from ridgeline.errors import InputError
from ridgeline.plan.explain import TERMS, explain, read_estimate
from ridgeline.plan.training.enumeration import chunks
from ridgeline.plan.training.plan import plan_training
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout


def estimates(*changes: dict[str, object]) -> list[Estimate]:
    task = a_task("16xH100")
    usual: dict[str, object] = {"dp": 16, "fsdp": 16, "zero": 1, "global_batch": 32}
    return [task.estimate(Layout(**{**usual, **one})) for one in changes]  # type: ignore[arg-type]


def test_the_faster_one_is_named_whatever_the_order() -> None:
    fast, slow = estimates({}, {"recompute": "full"})
    for pair, names in (((fast, slow), ("fast", "slow")), ((slow, fast), ("slow", "fast"))):
        told = explain(*pair, names)
        assert told.faster == "fast"
        assert told.times_faster == pytest.approx(slow.step_seconds / fast.step_seconds)
        assert told.sentences[0].startswith("fast is ")


def test_recomputation_is_blamed_for_recomputation() -> None:
    told = explain(*estimates({}, {"recompute": "full"}))
    assert told.knobs == {"recompute": ("none", "full")}
    assert told.terms[0].term == "recompute"
    assert "recompute none against full" in told.sentences[1]


def test_tensor_parallelism_is_blamed_for_its_waiting() -> None:
    told = explain(*estimates({}, {"dp": 2, "fsdp": 2, "tp": 8, "sp": True}))
    assert any("tensor parallelism" in one and "tp 1 against 8" in one for one in told.sentences)


def test_differences_of_terms_add_up_to_that_of_the_steps() -> None:
    first, second = estimates({}, {"dp": 4, "fsdp": 4, "pp": 4})
    told = explain(first, second)
    total = sum(term.second_seconds - term.first_seconds for term in told.terms)
    assert total == pytest.approx(second.step_seconds - first.step_seconds)
    gaps = [abs(term.second_seconds - term.first_seconds) for term in told.terms]
    assert gaps == sorted(gaps, reverse=True)


def test_equal_estimates_are_called_equal() -> None:
    (one,) = estimates({})
    told = explain(one, one)
    assert told.times_faster == 1.0
    assert told.knobs == {}
    assert "within 0.5 %" in told.sentences[0]


def test_different_batches_are_compared_per_sequence() -> None:
    small, large = estimates({"global_batch": 16}, {"global_batch": 64})
    told = explain(small, large, ("small", "large"))
    assert told.faster == "large", "four times the work in less than four times the time"
    assert "64 and 16 sequences" in told.sentences[0]


def test_different_assumptions_are_said() -> None:
    (one,) = estimates({})
    other = msgspec.structs.replace(one, assumed=["the moon is full"])
    told = explain(one, other)
    assert "only B assumes: the moon is full" in told.sentences
    assert not any("assumes" in sentence for sentence in explain(one, one).sentences)


@pytest.mark.parametrize("model", [a_model(), a_mixture()], ids=lambda model: model.name)
def test_every_term_of_the_cost_model_has_words(model) -> None:
    task = a_task("16xH100", model=model)
    first = next(chunks(task.space(8)))
    found = estimate_training(task.model, task.cluster, task.workload, first, task.coefficients)
    assert set(found.terms) <= set(TERMS)
    known = set(Layout.__struct_fields__)
    assert all(set(knobs) <= known for _, knobs in TERMS.values())


def test_an_estimate_is_read_from_a_prediction_and_from_a_plan(tmp_path: Path) -> None:
    plan = plan_training(a_model(), "8xH100", global_batch=8, seq=512)
    predicted, planned = tmp_path / "predicted.json", tmp_path / "plan.json"
    predicted.write_bytes(msgspec.json.encode(plan.best.estimate))
    planned.write_bytes(msgspec.json.encode(plan))
    assert read_estimate(predicted) == read_estimate(planned) == plan.best.estimate


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"best": 3}', '{"best": {"layout": {}}}'])
def test_a_file_that_is_no_estimate_is_named_with_the_cure(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"x\.json: not (an estimate|JSON).*predict training"):
        read_estimate(path)
    with pytest.raises(InputError, match="no such file"):
        read_estimate(tmp_path / "gone.json")
