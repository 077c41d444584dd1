"""A plan as a whole: its parts agree with each other, and bad questions get one clear line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.tasks import a_mixture, a_model, a_task

from ridgeline.errors import InputError
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.plan.training.bill import bill_of
from ridgeline.plan.training.plan import plan_task, plan_training, task_of
from ridgeline.plan.training.reverse import cluster_for, sizes
from ridgeline.records.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_training(a_model(), "16xH100", global_batch=32, seq=2048, tokens=1e10)


def test_the_best_fits_and_beats_its_runners_up(plan: Plan) -> None:
    best = plan.best.estimate
    assert best.memory.verdict == "fits"
    assert plan.best.layout == best.layout
    assert plan.best.layout.num_devices == 16
    assert 0 < plan.feasible <= plan.searched
    for runner in plan.runners_up:
        assert runner.times_slower >= 1
        assert runner.times_slower == pytest.approx(
            runner.estimate.step_seconds / best.step_seconds
        )
        assert runner.why
        assert runner.layout != plan.best.layout


def test_runners_up_differ_in_more_than_a_detail(plan: Plan) -> None:
    layouts = [plan.best.layout, *(runner.layout for runner in plan.runners_up)]
    kinds = {(x.tp, x.pp, x.cp > 1, x.ep, x.zero == 3, x.offload != "none") for x in layouts}
    assert len(kinds) == len(layouts) == 5


def test_the_front_begins_with_the_best_and_is_not_dominated(plan: Plan) -> None:
    times = [point.estimate.step_seconds for point in plan.pareto]
    peaks = [point.estimate.memory.peak_bytes for point in plan.pareto]
    assert plan.pareto[0].layout == plan.best.layout
    assert times == sorted(set(times))
    assert peaks == sorted(set(peaks), reverse=True)
    assert all(point.estimate.memory.verdict == "fits" for point in plan.pareto)


def test_every_knob_has_the_value_of_the_best_at_one(plan: Plan) -> None:
    knobs = {value.knob for value in plan.knobs}
    assert {"tp", "pp", "zero", "recompute"} <= knobs
    for knob in knobs:
        ours = str(getattr(plan.best.layout, knob))
        at = {value.value: value.times_slower for value in plan.knobs if value.knob == knob}
        assert at[ours] == pytest.approx(1.0)
        assert min(slower for slower in at.values() if slower) == pytest.approx(1.0)


def test_a_knob_says_where_nothing_fits() -> None:
    plan = plan_training("Llama-3-70B", "8xH100", global_batch=8, seq=8192)
    tp = {value.value: value.times_slower for value in plan.knobs if value.knob == "tp"}
    recompute = {v.value: v.times_slower for v in plan.knobs if v.knob == "recompute"}
    assert set(tp) == {"1", "2", "4", "8"}
    assert set(recompute) == {"none", "selective", "full"}
    assert any(value.times_slower is None for value in plan.knobs)


def test_the_class_of_software_reaches_the_cost_model() -> None:
    usual = {"global_batch": 32, "seq": 2048}
    new = plan_training(a_model(), "16xA100", software="megatron", **usual)
    old = plan_training(a_model(), "16xA100", software="legacy", **usual)
    assert old.best.estimate.step_seconds > new.best.estimate.step_seconds
    with pytest.raises(InputError, match="unknown software stack"):
        plan_training(a_model(), "16xA100", software="megatrom", **usual)


def test_changes_are_not_worse_than_keeping_the_layout(plan: Plan) -> None:
    by_name = {answer.change: answer for answer in plan.what_if}
    for name in ("twice the bandwidth inside a node", "twice the network bandwidth",
                 "twice the memory on each device", "twice the devices"):  # fmt: skip
        times = by_name[name].times_faster
        assert times is not None
        assert times >= 1 - 1e-9, name
    half = by_name["half the devices"]
    assert half.num_devices == 8
    assert half.times_faster is not None
    assert 0.3 < half.times_faster < 1
    assert by_name["matmuls in fp8"].layout is not None


def test_the_bill_follows_from_the_step(plan: Plan) -> None:
    bill = plan.bill
    assert bill is not None
    assert bill.steps == -(-int(1e10) // (32 * 2048))
    assert bill.days == pytest.approx(bill.steps * plan.best.estimate.step_seconds / 86_400)
    assert bill.device_hours == pytest.approx(bill.days * 24 * 16)
    assert bill.usd == pytest.approx(bill.device_hours * bill.usd_per_device_hour)
    assert bill.kilowatt_hours == pytest.approx(bill.device_hours * 0.7)


def test_a_model_that_the_cost_model_cannot_time_is_said_so() -> None:
    task = a_task("8xH100")
    no_time = replace(task.coefficients, gemm={"bf16": float("nan")})
    with pytest.raises(InputError, match="has no step time for small"):
        plan_task(replace(task, coefficients=no_time))


def test_a_device_without_price_or_power_says_so() -> None:
    bill = bill_of(parse_cluster("8xTPU-v5p"), 1.0, 1e9, 1_000_000)
    assert bill.usd is None
    assert bill.kilowatt_hours is None
    assert any("no price" in note for note in bill.notes)


def test_the_cheapest_plan_uses_no_more_device_time_than_the_fastest(plan: Plan) -> None:
    cheap = plan_training(a_model(), "16xH100", global_batch=32, seq=2048, objective="cost")
    devices = cheap.best.layout.num_devices
    assert devices * cheap.best.estimate.step_seconds <= 16 * plan.best.estimate.step_seconds
    spent = [point.device_seconds_per_step for point in cheap.pareto]
    assert spent == sorted(spent, reverse=True)
    assert cheap.pareto[-1].num_devices == devices
    assert cheap.cluster == f"{devices}xH100-SXM-80GB"


def test_assumptions_of_the_cluster_reach_the_plan(plan: Plan) -> None:
    assert any("DGX H100" in sentence for sentence in plan.assumed)


def test_a_mixture_of_experts_is_planned_with_expert_parallelism() -> None:
    plan = plan_task(a_task("16xH100", model=a_mixture()))
    assert {value.knob for value in plan.knobs} >= {"ep"}


def test_a_part_without_bf16_is_planned_in_fp16() -> None:
    plan = plan_training(a_model(layers=2), "8xV100", global_batch=8, seq=512)
    assert plan.best.layout.precision == "fp16"


def test_when_nothing_fits_the_line_says_how_much_is_missing_and_what_would_do() -> None:
    with pytest.raises(InputError, match=r"needs [\d.]+ GB of [\d.]+ GB.*too much") as caught:
        plan_training("Llama-3-70B", "2xH100", global_batch=16, seq=4096)
    message = str(caught.value)
    assert "\n" not in message
    count = int(message.rpartition("; ")[2].partition("x")[0])
    assert plan_training("Llama-3-70B", f"{count}xH100", global_batch=16, seq=4096).feasible


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "Llama-3-8"}, "did you mean Llama-3-8B"),
        ({"cluster": "8xH1000"}, "did you mean"),
        ({"cluster": "H100"}, "write a count"),
        ({"global_batch": 0}, "global batch is 0"),
        ({"seq": 0}, "--seq 0: it must be 1 or more"),
        ({"tokens": -1.0}, "tokens is -1"),
        ({"precisions": ["fp8"], "cluster": "8xA100"}, "has no fp8 units"),
        ({"precisions": ["bf61"]}, "unknown precision 'bf61'"),
        ({"model": "gpt2", "seq": 8192}, "learned positions for 1024"),
        ({"cluster": "13xH100", "global_batch": 64}, "nearest that can: 52 or 65"),
    ],
)
def test_a_bad_question_gets_one_clear_line(changes: dict[str, object], message: str) -> None:
    usual = {"model": "Llama-3-8B", "cluster": "8xH100", "global_batch": 8, "seq": 2048}
    with pytest.raises(InputError, match=message) as caught:
        plan_training(**{**usual, **changes})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_smallest_cluster_meets_the_date_and_no_smaller_one_tried_does() -> None:
    task = a_task("256xH100", global_batch=256)
    chosen, met = cluster_for([task], tokens=1e12, days=20)
    assert [one.task.cluster.num_devices for one in met] == [chosen.cluster.num_devices]
    assert met[0].days <= 20
    smaller = [n for n in sizes(task, 1e12, 20) if n < chosen.cluster.num_devices]
    assert smaller, "the bound from full peak must lie below the answer"
    largest = task.sized(smaller[-1])
    with pytest.raises(InputError, match="allow more devices"):
        cluster_for([largest], tokens=1e12, days=20)


@pytest.mark.slow
def test_the_cheapest_of_several_kinds_is_chosen_by_price() -> None:
    tasks = [a_task("256xH100", global_batch=256), a_task("512xA100", global_batch=256)]
    chosen, met = cluster_for(tasks, tokens=1e12, days=20, objective="cost")
    costs = {one.task.cluster.device.name: one.usd for one in met}
    assert len(costs) == 2
    best = min(met, key=lambda one: one.usd or 0.0)
    assert best.task.cluster == chosen.cluster


@pytest.mark.parametrize(
    ("days", "objective", "message"),
    [
        (0.0, "time", "must be above 0"),
        (1.0, "memory", "time or cost"),
        (0.001, "time", "arithmetic alone takes"),
    ],
)
def test_a_date_that_cannot_be_met_is_one_clear_line(
    days: float, objective: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        cluster_for([a_task("8xH100")], tokens=1e12, days=days, objective=objective)  # type: ignore[arg-type]


def test_tensor_parallelism_leaves_the_node_only_when_it_must() -> None:
    task = task_of("Llama-3-70B", "16xA100", global_batch=1, seq=65_536)
    narrow = replace(task.cluster, domain_size=1)
    plan = plan_task(task.on(narrow))
    assert plan.best.layout.num_devices == 16
    if plan.best.layout.tp > 1:
        assert any("leave the fast domain" in sentence for sentence in plan.assumed)
