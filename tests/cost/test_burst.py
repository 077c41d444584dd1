"""Bursts of requests and the matmuls that few or unevenly spread tokens bring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.arrays import Floats
from ridgeline.cost.serving.burst import BurstOutcome, burst_outcome
from ridgeline.cost.serving.load import most_running, static_seconds
from ridgeline.cost.serving.mean_steps import steady_step
from ridgeline.cost.serving.setting import ServingLayout
from ridgeline.models import load_model
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.estimate import Arrays, arrays_of
from ridgeline.plan.serving.question import replica_of
from ridgeline.plan.serving.spreads import Neighbourhood, Spread


def served(gpu: str = "h100", model: str = "Llama-3.1-8B", **values: object) -> Arrays:
    asked = {"weights": "bf16", "prompt": 500.0, "completion": 200.0} | values
    return arrays_of([replica_of(load_model(model), gpu, **asked)], read_calibration())


def burst(case: Arrays, requests: float, most: float, varied: float = 0.0) -> BurstOutcome:
    lengths = replace(case.lengths, varied=np.array([varied]))
    return burst_outcome(case.hosted, case.rates, lengths, np.array([requests]), np.array([most]))


def test_a_burst_that_fits_takes_its_prompts_and_then_its_tokens() -> None:
    case = served(engine="native")
    rate = float(burst(case, 16.0, 256.0).tokens_per_second[0])
    alone = float(static_seconds(case.hosted, case.rates, case.lengths, np.array([16.0]))[0])
    assert rate == pytest.approx(16 * 200 / alone, rel=0.05)


def test_an_endless_burst_runs_as_fast_as_requests_that_never_run_out() -> None:
    case = served(engine="native")
    step = float(steady_step(case.hosted, case.rates, case.lengths, np.array([64.0])).total[0])
    rate = float(burst(case, 1e6, 64.0, 1.0).tokens_per_second[0])
    assert rate == pytest.approx(64.0 / step, rel=0.01)
    alike = float(burst(case, 1e6, 64.0).tokens_per_second[0])
    assert alike == pytest.approx(64.0 / step, rel=0.15)  # whose prompts come in full chunks


def test_conversations_end_one_by_one_and_the_last_run_alone() -> None:
    case = served()
    alike, varied = (burst(case, 512.0, 256.0, one) for one in (0.0, 1.0))
    assert varied.tokens_per_second[0] < 0.8 * alike.tokens_per_second[0]
    assert varied.running[0] == alike.running[0] == 256.0


def test_short_conversations_that_begin_among_prompts_weigh_as_much_as_long_ones() -> None:
    """Their steps carry prompts, so that the mean over requests is longer than over tokens."""
    case = served(prompt=2000.0)
    alike, varied = (burst(case, 256.0, 256.0, one) for one in (0.0, 1.0))
    assert varied.next_token_seconds[0] > 1.2 * alike.next_token_seconds[0]


def test_engines_that_run_prompts_first_let_conversations_wait_for_them() -> None:
    case = served(prompt=2000.0)
    first = replace(case, lengths=replace(case.lengths, prompts_first=np.ones(1)))
    beside, waiting = (burst(one, 256.0, 256.0, 1.0).next_token_seconds[0] for one in (case, first))
    assert waiting > 1.1 * beside


def test_what_is_admitted_by_its_prompts_room_waits_behind_its_first_token() -> None:
    case = served("A100-SXM-40GB", "Qwen2.5-14B", prompt=1024.0, completion=1024.0)
    most = float(most_running(case.hosted, case.rates, case.lengths)[0])
    whole = replace(case, lengths=replace(case.lengths, by_prompt=np.zeros(1)))
    ahead, fitting = (burst(one, 2 * most, most) for one in (case, whole))
    # What was sent back is computed once more.
    assert 0.85 < ahead.tokens_per_second[0] / fitting.tokens_per_second[0] < 0.99
    assert ahead.first_token_seconds[0] < 0.7 * fitting.first_token_seconds[0]
    # A prompt takes half of the whole, so that two have begun where one fits; of 8 / 3 generations
    # the first two are under way half a completion longer than they run, later ones a whole one.
    ratio = ahead.next_token_seconds[0] / fitting.next_token_seconds[0]
    assert ratio == pytest.approx(1.0 + 5.0 / 8.0, rel=0.04)
    spent = [one.first_token_seconds[0] + 1024 * one.next_token_seconds[0]
             for one in (ahead, fitting)]  # fmt: skip
    assert spent[0] == pytest.approx(spent[1], rel=0.05)
    few = [burst(one, 0.7 * most, most).next_token_seconds[0] for one in (case, whole)]
    assert few[0] == few[1]


def test_requests_of_one_age_need_their_whole_room_at_the_same_time() -> None:
    case = served("A100-SXM-40GB", "Qwen2.5-14B", prompt=64.0, completion=2048.0)
    half_grown = float(most_running(case.hosted, case.rates, case.lengths)[0])
    alike, conversations = (burst(case, 500.0, half_grown, one).running[0] for one in (0.0, 1.0))
    assert conversations == pytest.approx(half_grown)
    assert alike < 0.65 * half_grown
    spans = replace(case, lengths=replace(case.lengths, even=np.ones(1)))
    assert burst(spans, 500.0, half_grown).running[0] == pytest.approx(half_grown)


def test_what_no_fit_has_seen_a_burst_of_has_no_narrow_interval() -> None:
    layout = ServingLayout()
    place = Neighbourhood(architecture="Hopper", engine="native", experts=False, layout=layout)
    narrow = Spread(near={"throughput dense": 0.05})
    assert narrow.of("throughput", place, {place.key}) == 0.05
    assert narrow.of("throughput", replace(place, burst=True), {place.key}) == 0.25


def test_times_per_token_of_bursts_and_of_other_hardware_are_the_least_sure() -> None:
    place = Neighbourhood(
        architecture="Hopper", engine="native", experts=True, layout=ServingLayout()
    )
    spread = Spread(near={"next_token experts": 0.2}, far={"next_token experts": 0.2})
    other = replace(place, architecture="CDNA 9")
    known = {place.key, replace(place, layout=ServingLayout(attention_dp=2)).key}
    usual = spread.of("next_token", place, known)
    bursting = spread.of("next_token", replace(place, burst=True), known)
    unseen = spread.of("next_token", other, known)
    assert usual == 0.2
    assert bursting > 2.0 * usual
    assert unseen > 2.0 * usual
    throughput = spread.of("throughput", replace(place, burst=True, experts=False), known)
    assert throughput < bursting


def test_an_engine_of_which_no_run_is_in_the_fit_has_a_wider_interval() -> None:
    layout = ServingLayout()
    place = Neighbourhood(architecture="Hopper", engine="native", experts=False, layout=layout)
    spread = Spread(near={"throughput dense": 0.1}, far={"throughput dense": 0.1})
    other = replace(place, engine="python-2024")
    assert spread.of("throughput", place, {place.key}) == 0.1
    assert spread.of("throughput", other, {place.key}) == pytest.approx(0.125)


def test_a_generation_that_does_not_fill_the_engine_costs_more_a_token() -> None:
    case = served(prompt=10.0, completion=1000.0)
    full, half = (burst(case, n, 256.0).tokens_per_second[0] for n in (512.0, 384.0))
    assert half < 0.95 * full


@pytest.mark.parametrize(("gpu", "slower"), [("mi300x", True), ("h100", False)])
def test_matmuls_of_more_than_four_rows_read_more_slowly_on_amd(gpu: str, slower: bool) -> None:
    case = served(gpu, prompt=1.0)

    def weights(sequences: float) -> float:
        running: Floats = np.array([sequences])
        return float(steady_step(case.hosted, case.rates, case.lengths, running).weights[0])

    assert (weights(8.0) > 1.2 * weights(2.0)) is slower


def test_an_h20_reads_a_matrix_for_one_vector_at_the_rate_of_its_compute_units() -> None:
    few, many = served("h20"), served("h200")
    assert float(few.rates.memory[0]) < 0.6 * float(many.rates.memory[0])
    experts = [float((one.rates.memory * one.rates.expert_memory)[0]) for one in (few, many)]
    assert experts[0] == pytest.approx(experts[1], rel=0.1)


def test_groups_of_devices_run_the_prompts_of_a_burst_beside_each_other() -> None:
    def rate(**layout: int) -> float:
        asked: dict[str, object] = {"weights": "fp8", "prompt": 8000.0, "completion": 2.0}
        case = served("h200", "DeepSeek-V3", **asked, **layout)
        return float(burst(case, 512.0, 256.0).tokens_per_second[0])

    assert rate(tp=1, attention_dp=8) > 0.7 * rate(tp=8)


def test_whole_experts_on_more_devices_are_less_even() -> None:
    values = {"tp": 8, "engine": "native", "prompt": 8000.0, "completion": 10.0}
    assert float(served("b200", "Qwen3-235B-A22B", ep=1, **values).hosted.expert_imbalance[0]) == 0
    imbalance = [
        float(served("b200", "Qwen3-235B-A22B", ep=ep, **values).hosted.expert_imbalance[0])
        for ep in (2, 4, 8)
    ]
    assert imbalance == sorted(imbalance)
    assert imbalance[0] > 0.0
