"""Worker processes around a parameter server."""

from __future__ import annotations

import multiprocessing

import pytest
from tests.train.asynchronous.digits import Clouds, accuracy

import ridgeline
from ridgeline.errors import InputError, ScriptError
from ridgeline.train.asynchronous.rules import RULES, Rule

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains_and_leaves_no_process(rule: Rule) -> None:
    settings = ridgeline.AsynchronousSettings(workers=3, rule=rule, learning_rate=0.3)
    found = ridgeline.train_asynchronously(Clouds(), settings, gradients=120)
    assert accuracy(found.model) > 0.93
    assert found.gradients == 120
    assert found.updates == (40 if rule == "synchronous" else 120 - found.dropped)
    assert sum(found.steps_by_worker) == 120
    assert not multiprocessing.active_children()


def test_a_slow_worker_holds_up_all_with_a_barrier_and_only_itself_without() -> None:
    problem = Clouds(slow_worker=2, slow_rounds=200)
    steps = {}
    for rule in ("synchronous", "drop", "wait"):
        settings = ridgeline.AsynchronousSettings(workers=3, rule=rule, max_staleness=4)
        steps[rule] = ridgeline.train_asynchronously(
            problem, settings, gradients=10**6, most_seconds=4.0
        ).steps_by_worker
    assert max(steps["synchronous"]) - min(steps["synchronous"]) <= 1
    assert min(steps["drop"][:2]) > 3 * steps["drop"][2]
    assert max(steps["wait"]) - min(steps["wait"]) <= 5


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Clouds(fails=True), r"worker \d: ValueError: no such cloud"),
        (Clouds(killed=True), r"worker 1 of the asynchronous run was killed by SIGKILL"),
        (Clouds(diverges=True), r"worker \d: .*no number at its step 0 \(loss inf\)"),
    ],
    ids=["fails", "killed", "diverges"],
)
def test_what_fails_in_a_worker_is_one_line(problem: Clouds, told: str) -> None:
    settings = ridgeline.AsynchronousSettings(workers=2, rule="synchronous")
    with pytest.raises(ScriptError, match=told):
        ridgeline.train_asynchronously(problem, settings, gradients=40)


def test_a_problem_that_no_process_can_load_is_refused() -> None:
    class Local(Clouds):
        pass

    settings = ridgeline.AsynchronousSettings(workers=1)
    with pytest.raises(InputError, match="at the top of a module"):
        ridgeline.train_asynchronously(Local(), settings, gradients=1)
