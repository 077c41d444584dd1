"""The path of combinations, against trying them all."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.compress.search.budget import Option, lower_hull, path, within

numbers = st.integers(1, 40).map(float)
option_lists = st.lists(st.tuples(numbers, numbers), min_size=0, max_size=3).map(
    lambda pairs: [
        Option("as given", 50.0, 0.0),
        *(Option(f"s{place}", cost, loss) for place, (cost, loss) in enumerate(pairs)),
    ]
)
problems = st.lists(option_lists, min_size=1, max_size=4).map(
    lambda units: {f"unit {place}": options for place, options in enumerate(units)}
)


@given(option_lists)
def test_a_hull_falls_ever_more_slowly(options: list[Option]) -> None:
    hull = lower_hull(options)
    rates = [(a.cost - b.cost) / (b.loss - a.loss) for a, b in pairwise(hull)]
    assert rates == sorted(rates, reverse=True)
    assert hull[-1].cost == min(option.cost for option in options)


@given(problems, st.floats(0.0, 2.0))
def test_no_combination_is_better_than_the_path_at_any_price_of_loss(
    problem: dict[str, list[Option]], price: float
) -> None:
    best = min(
        sum(one.cost + price * one.loss for one in chosen) for chosen in product(*problem.values())
    )
    on_path = min(one.cost + price * one.loss for one in path(problem))
    assert on_path <= best + 1e-9


@given(problems)
def test_along_the_path_cost_falls_and_loss_rises(problem: dict[str, list[Option]]) -> None:
    combinations = path(problem)
    assert combinations[0].loss == 0.0
    for before, after in pairwise(combinations):
        assert after.cost < before.cost
        assert after.loss > before.loss
        changed = [unit for unit in problem if before.chosen[unit] != after.chosen[unit]]
        assert len(changed) == 1


@given(problems, st.floats(0.0, 100.0))
def test_the_cheapest_within_a_budget_is_the_last_that_fits(
    problem: dict[str, list[Option]], budget: float
) -> None:
    combinations = path(problem)
    place = within(combinations, budget)
    assert combinations[place].loss <= budget
    assert all(one.loss > budget for one in combinations[place + 1 :])
