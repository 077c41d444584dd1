"""Forecasts hold four gains in five because of how far earlier ones were off."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.techniques import Gain, all_techniques
from ridgeline.tune.forecast import COVERAGE, OTHERS, TOGETHER, fitted, foretold, key_of_margin

GAINS = st.floats(0.3, 8.0)
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), GAINS, GAINS, GAINS), max_size=60)


def rows_of(drawn):
    return [(key, Gain(min(x, y), max(x, y)), gain) for key, x, y, gain in drawn]


@given(ROWS)
def test_margins_never_narrow_a_range(drawn):
    for margin in fitted(rows_of(drawn)):
        assert margin.below >= 1
        assert margin.above >= 1


@given(ROWS)
def test_every_technique_that_was_measured_has_a_margin_and_all_rows_stand_for_the_rest(drawn):
    margins = fitted(rows_of(drawn))
    assert [margin.technique for margin in margins[:-1]] == sorted({key for key, *_ in drawn})
    assert sum(margin.rows for margin in margins[:-1]) == margins[-1].rows == len(drawn)
    assert margins[-1].technique == OTHERS


def sloppy_and_exact(num_exact):
    """Thirty rows that miss by a factor of two, and rows of another technique that hit."""
    sloppy = [("sloppy", Gain(1.0, 1.2), 2.4)] * 30
    return {
        m.technique: m for m in fitted([*sloppy, *[("exact", Gain(1.0, 1.2), 1.1)] * num_exact])
    }


def test_few_rows_borrow_the_margin_of_all_and_many_have_their_own():
    few, many = sloppy_and_exact(2), sloppy_and_exact(80)
    assert few["exact"].above == few[OTHERS].above == 2
    assert many["exact"].above == 1
    assert many["sloppy"].above == 2


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("bias", [-0.2, 0.0, 0.2])
@pytest.mark.parametrize("count", [9, 40])
def test_the_next_gain_is_held_as_often_as_promised_whatever_the_models_error(spread, bias, count):
    source = random.Random(0)

    def row():
        model = Gain(source.uniform(0.7, 1.2), source.uniform(1.2, 3.0))
        truth = source.uniform(model.low, model.high) * 2 ** source.gauss(bias, spread)
        return ("one", model, truth)

    held, trials = 0, 800
    for _ in range(trials):
        margin = fitted([row() for _ in range(count)])[0]
        _, model, truth = row()
        held += model.low / margin.below <= truth <= model.high * margin.above
    assert held / trials > COVERAGE - 0.04  # three standard errors


def test_every_technique_is_foretold_at_least_the_range_of_its_model():
    for name in (*all_techniques(), "one that nobody has measured"):
        low, high = foretold([name], Gain(0.9, 1.5))
        assert low <= 0.9
        assert high >= 1.5


def test_what_was_added_as_one_is_judged_by_what_was_added_as_one():
    assert key_of_margin(["compile"]) == "compile"
    assert key_of_margin(["compile", "bf16-autocast"]) == TOGETHER
