"""Every rule finds its own fault, and nothing in a clean script."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.diagnose.faults import DDP, MS, a_tail, readings, stragglers
from tests.diagnose.profiles import (
    STEP_SECONDS,
    gpu,
    hot,
    limits,
    op,
    profile,
    reading,
    site,
    spread,
)

from ridgeline.diagnose.diagnosis import diagnose
from ridgeline.diagnose.ranking import is_worthwhile
from ridgeline.diagnose.reading import Reading
from ridgeline.diagnose.rules import all_rules
from ridgeline.hardware.storage import StorageRates
from ridgeline.records import Distribution, Finding, StepProfile, SyncPoint
from ridgeline.records.script_facts import Habit, HabitName
from ridgeline.techniques import all_techniques

READINGS = readings()
CAUSES = {cause: rule for rule in all_rules().values() for cause in rule.CAUSES}


def found(seen: Reading) -> dict[str, Finding]:
    return {f.cause: f for rule in all_rules().values() for f in rule.find(seen)}


def test_every_cause_has_a_fault_that_shows_it() -> None:
    assert set(READINGS) == set(CAUSES)


@pytest.mark.parametrize("cause", sorted(READINGS))
def test_a_rule_names_its_fault(cause: str) -> None:
    finding = found(READINGS[cause]).get(cause)
    assert finding is not None
    assert is_worthwhile(finding)


@pytest.mark.parametrize("cause", sorted(READINGS))
def test_a_finding_is_honest_about_its_numbers(cause: str) -> None:
    for finding in found(READINGS[cause]).values():
        assert 0.0 <= finding.share <= 1.0
        assert 1.0 <= finding.gain_low <= finding.gain_high
        assert 0.0 < finding.confidence <= 1.0
        assert finding.effort in {"flag", "line", "code", "design"}
        assert finding.summary.endswith(".")
        assert finding.cure.endswith((".", "`"))
        assert finding.evidence


@pytest.mark.parametrize("cause", sorted(READINGS))
def test_a_named_technique_exists_and_knows_the_cause(cause: str) -> None:
    for finding in found(READINGS[cause]).values():
        if finding.technique is not None:
            assert finding.cause in all_techniques()[finding.technique].CARD.cures


def test_what_a_technique_cures_is_a_cause_that_a_rule_can_report() -> None:
    cured = {cause for t in all_techniques().values() for cause in t.CARD.cures}
    assert cured <= set(CAUSES)


@pytest.mark.parametrize("clean", [profile(), gpu()], ids=["cpu", "gpu"])
def test_a_clean_script_gets_no_advice(clean: StepProfile) -> None:
    device = clean.models[0].device.split(":")[0]
    assert diagnose([clean], limits(device)).findings == ()


def test_without_peaks_nothing_is_claimed_about_them() -> None:
    seen = READINGS["fp32-matmul"]
    assert "fp32-matmul" not in found(replace_ceilings(seen))


def replace_ceilings(seen: Reading) -> Reading:
    return Reading(profile=seen.profile, ranks=seen.ranks, ceilings=None)


@pytest.mark.parametrize("cause", sorted(READINGS))
def test_a_profile_without_peaks_or_operators_can_be_judged(cause: str) -> None:
    bare = replace(READINGS[cause].profile, operators=[], hot_lines=[], models=[])
    assert diagnose([bare]).verdict


def test_float32_is_fine_where_bfloat16_is_no_faster() -> None:
    seen = READINGS["fp32-matmul"].profile
    slow = limits(matmul_flops_per_second={"fp32": 1e11, "bf16": 1.1e11})
    assert "fp32-matmul" not in found(reading(seen, ceilings=slow))


def test_a_loss_scaler_may_overflow_now_and_then() -> None:
    scaled = profile(non_finite=1, gradient_norms=[1.0] * 5, settings={"gradient_scaler": True})
    assert "non-finite" not in found(reading(scaled))
    unscaled = profile(non_finite=1, gradient_norms=[1.0] * 5)
    assert "non-finite" in found(reading(unscaled))


def test_a_loss_that_no_optimizer_learns_from_may_not_be_finite_where_a_sampler_turns_it_down() -> (
    None
):
    trained = READINGS["non-finite"].profile
    assert found(reading(trained))["non-finite"].confidence == 1
    sampled = found(reading(replace(trained, optimizers=[])))["non-finite"]
    assert sampled.confidence == 0.5
    assert "learning rate" not in sampled.cure


def test_records_of_collectives_are_no_leak() -> None:
    alone = profile(memory_growth_bytes_per_step=12_000.0)
    assert "memory-leak" in found(reading(alone))
    averaging = profile(
        memory_growth_bytes_per_step=12_000.0, habits={"collective": Habit(calls=16.0)}
    )
    assert "memory-leak" not in found(reading(averaging))


def test_the_last_backward_of_a_shared_graph_may_follow_retaining_ones() -> None:
    shared = profile(
        settings={"backwards_per_step": 2.0}, habits={"retain_graph": Habit(calls=1.0)}
    )
    assert "retained-graph" not in found(reading(shared))


def test_a_pass_through_gradients_that_were_asked_for_is_no_pass_through_an_older_graph() -> None:
    kept = READINGS["retained-graph"].profile
    assert found(reading(kept))["retained-graph"].gain_low > 1
    forces = replace(kept, habits=kept.habits | {"gradient": Habit(calls=1.0)})
    assert found(reading(forces))["retained-graph"].gain_high == 1


def test_an_inference_script_that_asks_for_gradients_needs_them_recorded() -> None:
    explains = READINGS["gradients-in-inference"].profile
    phases = explains.phases | {"backward": explains.phases["forward"]}
    assert "gradients-in-inference" not in found(reading(replace(explains, phases=phases)))


def test_matmuls_whose_threads_wait_for_a_core_are_not_what_bfloat16_would_shorten() -> None:
    big = READINGS["fp32-matmul"].profile
    waiting = [
        replace(op, limit_seconds=op.seconds / 1_000, flops=op.flops / 1_000)
        for op in big.operators
    ]
    slower = found(reading(replace(big, operators=waiting))).get("fp32-matmul")
    assert slower is None or slower.gain_high < found(reading(big))["fp32-matmul"].gain_low


def test_batches_that_compute_gain_less_from_workers_on_a_cpu_than_batches_that_wait() -> None:
    waits = READINGS["input-starved"].profile
    loader = replace(waits.loaders[0], fetch_cpu_seconds=waits.loaders[0].fetch_seconds)
    computes = replace(waits, loaders=[loader])
    slept = found(reading(waits))["input-starved"]
    worked = found(reading(computes))["input-starved"]
    assert worked.gain_low < slept.gain_low
    assert worked.effort == "code"
    assert slept.effort == "line"


def test_no_number_of_workers_reads_faster_than_the_disk() -> None:
    waits = READINGS["input-starved"].profile
    loader = replace(waits.loaders[0], fetch_read_bytes=12e6, fetch_disk_bytes=10e6)
    seen = replace(waits, loaders=[loader])
    quick = found(dataclasses.replace(reading(seen), storage=a_disk(2e9)))["input-starved"]
    slow = found(dataclasses.replace(reading(seen), storage=a_disk(80e6)))["input-starved"]
    assert slow.evidence["disk_seconds"] == 0.125
    assert slow.gain_high < quick.gain_high
    assert "The disk alone needs 125" in slow.summary
    assert slow.cure.startswith("Read less from this disk")
    assert "num_workers" in quick.cure


def a_disk(bytes_per_second: float) -> StorageRates:
    return StorageRates(
        folder="/data",
        file_bytes=2**28,
        cache="circumvented",
        write_bytes_per_second=bytes_per_second,
        sequential_bytes_per_second=bytes_per_second,
        random_bytes_per_second=bytes_per_second,
        random_read_bytes=2**17,
        random_readers=8,
        small_read_seconds=1e-4,
        date="2026-11-28T00:00:00+00:00",
    )


def test_workers_that_make_batches_in_time_are_not_asked_to_be_more() -> None:
    seen = profile(
        shares={"data": 0.3},
        loader={"num_workers": 2, "fetch_seconds": 1e-3, "wait_seconds": 0.03},
    )
    finding = found(reading(seen))["input-starved"]
    assert finding.technique is None
    assert "num_workers=0" in finding.cure


def test_asking_is_not_blamed_for_what_a_line_computes() -> None:
    seen = profile(
        sync_points=[SyncPoint(kind="item", site=site(20), calls=64, seconds=1e-4)],
        hot_lines=[hot(20, 0.6, phase="backward")],
    )
    assert diagnose([seen], limits()).findings == ()


def test_side_work_of_inference_is_told_without_words_of_training() -> None:
    seen = READINGS["side-work"].profile
    assert "training" in found(reading(seen))["side-work"].cure
    infers = found(reading(replace(seen, kind="inference")))["side-work"]
    assert not {"training", "optimizer", "backward"} & set(
        f"{infers.summary} {infers.cure}".replace(".", " ").replace(",", " ").split()
    )


def test_a_model_that_is_called_by_a_method_of_its_own_is_no_side_work() -> None:
    seen = READINGS["side-work"].profile
    beside = sum(op.seconds for op in seen.operators if op.phase == "other")
    towards_loss = Habit(calls=9.0, seconds=beside)
    assert "side-work" in found(reading(seen))
    called = replace(seen, habits={**seen.habits, "towards_loss": towards_loss})
    assert "side-work" not in found(reading(called))


def test_relu_between_products_is_no_chain_to_fuse() -> None:
    relu = op("relu", 0.6, bound="memory", calls=4, shapes="[512,512]", flops=0.0)
    seen = profile(shares={"forward": 0.6}, operators=[op("addmm", 0.3), relu])
    assert "unfused-elementwise" not in found(reading(seen))


def test_a_compiled_model_is_not_told_to_compile() -> None:
    seen = READINGS["unfused-elementwise"].profile
    compiled = replace(seen, models=[replace(seen.models[0], compiled=True)])
    assert "unfused-elementwise" not in found(reading(compiled))


def test_odd_dimensions_that_reach_the_same_rate_are_left_alone() -> None:
    seen = profile(
        shares={"forward": 0.6},
        model={"odd_dimensions": {"head.weight": 50257}},
        more=[op("mm", 0.6, shapes="[4096,768],[768,50257]", flops=1e10)],
    )
    assert "odd-dimensions" not in found(reading(seen))


def test_a_slow_rank_is_named_with_the_phase_in_which_it_is_slow() -> None:
    fast, slow = stragglers()
    finding = found(reading(fast, slow))["straggler"]
    assert finding.evidence["slowest_rank"] == 1
    assert finding.evidence["phase"] == "data"


def test_checkpointing_that_memory_needs_is_left_alone() -> None:
    seen = READINGS["needless-checkpointing"].profile
    full = replace(seen, peak_memory_bytes=int(0.8 * seen.device_memory_bytes))
    assert "needless-checkpointing" not in found(reading(full))


def test_an_adjoint_solve_that_memory_needs_is_left_alone() -> None:
    seen = READINGS["adjoint-solve"].profile
    kept = seen.kept_at_most_bytes("forward", "other")
    full = replace(seen, device_memory_bytes=int(seen.peak_memory_bytes + kept))
    assert "adjoint-solve" not in found(reading(full))
    unseen = replace(seen, operators=[])
    assert "adjoint-solve" not in found(reading(unseen))


def test_checks_of_arguments_on_a_gpu_are_said_to_wait_for_it_and_promised_less() -> None:
    habits = {"argument_check": Habit(calls=60.0, seconds=20 * MS, site=site(14))}
    here, there = (
        found(reading(seen(habits=habits)))["argument-checks"] for seen in (profile, gpu)
    )
    assert "the host waits for the GPU at each" in there.summary
    assert "waits" not in here.summary
    assert there.gain_low < here.gain_low


def test_emptying_a_cache_that_does_not_exist_costs_nothing() -> None:
    seen = profile(habits={"empty_cache": Habit(calls=1.0, seconds=1e-6)})
    assert "empty-cache" not in found(reading(seen))


def test_deterministic_convolutions_cost_only_on_a_gpu() -> None:
    seen = profile(
        settings={"deterministic": True},
        shares={"backward": 0.5},
        more=[op("convolution_backward", 0.5, phase="backward")],
    )
    assert "deterministic-algorithms" not in found(reading(seen))


def test_every_cause_is_in_the_reference() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
    text = page.read_text()
    assert [cause for cause in CAUSES if f"`{cause}`" not in text] == []


@pytest.mark.parametrize(
    ("settings", "habits", "tail", "named"),
    [
        ({"gc_seconds": 15 * MS}, {}, {}, "garbage collection"),
        ({"compile_seconds": 6 * STEP_SECONDS, "recompiles": 3}, {}, {}, "recompilation"),
        ({"compile_seconds": 6 * STEP_SECONDS}, {}, {}, "compilation"),
        ({}, {"empty_cache": Habit(seconds=15 * MS)}, {}, "emptying the allocator's cache"),
        ({"cpu_wait_seconds": 15 * MS}, {}, {}, "waiting for a core"),
        ({}, {}, {"phase_seconds": {"data": 7 * STEP_SECONDS}}, "waiting for input"),
        ({}, {}, {"size_correlation": 0.95}, "larger inputs"),
        ({}, {}, {"early_share": 1.0}, "warm-up of the first calls"),
        ({}, {}, {}, "unexplained, in forward"),
        ({"gc_seconds": 1 * MS}, {}, {}, "unexplained, in forward"),
    ],
)
def test_a_tail_is_laid_to_what_took_the_time(
    settings: dict[str, float],
    habits: dict[HabitName, Habit],
    tail: dict[str, object],
    named: str,
) -> None:
    slow = READINGS["latency-tail"].profile
    made = replace(
        slow,
        settings=replace(slow.settings, **{"gc_seconds": 0.0, **settings}),
        habits=habits,
        tail=a_tail(**tail),
    )
    finding = found(reading(made))["latency-tail"]
    assert finding.evidence["cause"] == named
    assert finding.gain_high == 1.0, "the typical call gets no faster"
    assert (named in finding.summary) == (not named.startswith("unexplained"))


def test_an_even_script_and_a_training_script_have_no_tail() -> None:
    slow = READINGS["latency-tail"].profile
    even = replace(slow, step_seconds=spread(STEP_SECONDS), tail=a_tail(slow_steps=0))
    assert "latency-tail" not in found(reading(even))
    assert "latency-tail" not in found(reading(replace(slow, kind="training")))
    assert "latency-tail" not in found(reading(replace(slow, tail=a_tail(slow_steps=1))))


def test_page_faults_are_worth_no_more_than_the_computing_leaves() -> None:
    """Two threads, each in the kernel for half of its time: without it half of the step stays."""
    step = STEP_SECONDS
    settings = {"page_faults": 1e6, "num_threads": 2, "cpu_count": 2, "kernel_seconds": step}
    computing = profile(settings={**settings, "cpu_seconds": 2 * step})
    waiting = profile(settings={**settings, "cpu_seconds": step})
    gains = {}
    for name, one in (("computing", computing), ("waiting", waiting)):
        gains[name] = found(reading(one))["page-faults"]
    assert gains["computing"].gain_high < 2.0
    assert gains["waiting"].gain_high > 5.0
    assert gains["computing"].gain_low == gains["waiting"].gain_low


def test_the_cure_of_exchanges_follows_from_who_makes_them() -> None:
    shares = {"communication": 0.4}
    of_ddp = found(reading(profile(world_size=2, model=DDP, shares=shares)))
    of_its_own = found(reading(profile(world_size=2, shares=shares)))
    assert of_ddp["exposed-communication"].technique == "ddp-buckets"
    assert of_its_own["exposed-communication"].technique is None
    assert "async_op=True" in of_its_own["exposed-communication"].cure


def test_peers_without_a_core_are_late_by_no_more_than_they_were_without_one() -> None:
    crowded = profile(world_size=2, shares={"communication": 0.4})
    spent = crowded.phases["communication"].p50
    some, all_of_it = (
        replace(crowded, settings=replace(crowded.settings, cpu_wait_seconds=share * spent))
        for share in (0.3, 1.0)
    )
    finding = found(reading(some))["exposed-communication"]
    assert finding.evidence["communication_seconds"] == pytest.approx(0.7 * spent)
    assert "exposed-communication" not in found(reading(all_of_it))


@pytest.mark.parametrize("cause", sorted(READINGS))
def test_where_no_operator_was_looked_at_none_is_counted(cause: str) -> None:
    """As of a script of which one slow step was seen."""
    unseen = reading(replace(READINGS[cause].profile, operators=[], operator_calls=0.0))
    for finding in found(unseen).values():
        counted = [name for name in finding.evidence if "operator" in name]
        assert not [name for name in counted if finding.evidence[name] == 0], finding
        assert " 0 operators" not in finding.summary
        assert " 0 s of " not in finding.summary


@pytest.mark.parametrize("steps", [1, 20])
def test_an_evaluation_that_was_met_once_is_not_said_to_come_with_every_step(steps: int) -> None:
    step, evaluation = 0.1, 1.9
    seen = profile(
        steps=steps,
        step_seconds=Distribution.of([step] * (steps - 1) + [step + evaluation]),
        phases={
            "forward": Distribution.of([step] * steps),
            "other": Distribution.of([0.0] * (steps - 1) + [evaluation]),
        },
        habits={
            "evaluation": Habit(calls=40.0 / steps, seconds=evaluation / steps),
            "save": Habit(calls=1 / steps, seconds=evaluation / steps),
        },
    )
    findings = found(reading(seen))
    for cause in ("frequent-evaluation", "save-in-loop"):
        assert "depends on how often it comes" in findings[cause].summary
        assert findings[cause].confidence < 0.5
        assert findings[cause].gain_low == 1.0
