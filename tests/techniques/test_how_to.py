"""The guide's own technique is a technique."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace
from tests.techniques.profiles import CUDA, MEMORY_LIMIT, context

from ridgeline.measure.child.points import Points
from ridgeline.records.edits import AtStart
from ridgeline.techniques import Technique

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-technique.md"


@pytest.fixture(scope="module")
def technique() -> Technique:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    module = ModuleType("flush_denormal")
    exec(compile(code, str(GUIDE), "exec"), vars(module))  # noqa: S102 - our own guide
    return module  # type: ignore[return-value]


def test_it_judges_with_a_reason(technique):
    assert technique.applies(context()).reason == "no subnormal numbers were found"
    assert technique.applies(context(model=CUDA)).reason == "the model is on cuda"
    finding = replace(MEMORY_LIMIT, cause="subnormal-numbers")
    given = context(findings=(finding,))
    assert technique.applies(given).ok
    assert technique.predict(given, {}).high > 1
    (edit,) = technique.edits(given, {})
    assert isinstance(edit, AtStart)


def test_it_applies_and_takes_back(technique):
    import torch

    tiny = torch.tensor([1e-40])
    points = Points()
    undo = technique.apply(points, {})
    points.on_model[0](torch.nn.Linear(1, 1))
    try:
        if points.effects:  # the processor has the switch
            assert float(tiny * 0.5) == 0.0
    finally:
        undo()
    assert float(tiny * 0.5) > 0.0
    assert points.on_model == []
