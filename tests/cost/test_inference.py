"""Steps of a serving engine: physics that must hold whatever the coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.serving.clock import clock_of
from ridgeline.cost.serving.load import (
    first_token_seconds,
    most_running,
    static_seconds,
    wave_seconds,
)
from ridgeline.cost.serving.mean_steps import decode_seconds, prompt_seconds, steady_step
from ridgeline.cost.serving.step import (
    TERMS,
    Work,
    expert_flops_per_second,
    experts_met,
    least_step_seconds,
    sequences_that_fit,
    step_time,
)
from ridgeline.cost.serving.tile_waves import wave_products
from ridgeline.hardware import device
from ridgeline.models import load_model
from ridgeline.plan.serving.coefficients import prior_calibration
from ridgeline.plan.serving.estimate import Arrays, arrays_of
from ridgeline.plan.serving.question import replica_of


def arrays(model: str = "Llama-3.1-8B", gpu: str = "H100", **values: object) -> Arrays:
    asked = {"weights": "bf16", "prompt": 1000.0, "completion": 200.0} | values
    return arrays_of([replica_of(load_model(model), gpu, **asked)], prior_calibration())


def work(**values: float) -> Work:
    given_here = {"prompt_groups": 1.0, "checked": 1.0} | values
    names = Work.__dataclass_fields__
    return Work(**{name: np.array([float(given_here.get(name, 0.0))]) for name in names})


MIXTURE = "gpt-oss-120b"
CASES = [
    arrays(),
    arrays("Mixtral-8x7B", "A100", tp=4),
    arrays("gpt-oss-120b", "H200", tp=2),
    arrays("gpt-oss-120b", "MI300X", tp=2, ep=2),
]


@given(
    case=st.sampled_from(CASES),
    prompts=st.integers(0, 8192),
    decodes=st.integers(0, 512),
    context=st.integers(1, 20_000),
)
def test_no_step_beats_the_hardware(case: Arrays, prompts: int, decodes: int, context: int) -> None:
    step = step_time(
        case.hosted,
        case.rates,
        work(prompt_tokens=prompts, decodes=decodes, decode_context=context),
    )
    assert step.total[0] > least_step_seconds(case.hosted, np.array([float(prompts + decodes)]))[0]
    assert step.total[0] <= sum(getattr(step, term)[0] for term in TERMS) + 1.0


@given(
    case=st.sampled_from(CASES),
    prompts=st.integers(0, 8192),
    done=st.integers(0, 8),
    decodes=st.integers(1, 512),
    context=st.integers(1, 20_000),
    guesses=st.integers(0, 8),
)
def test_the_clock_of_simulations_tells_the_same_time(
    case: Arrays, prompts: int, done: int, decodes: int, context: int, guesses: int
) -> None:
    pairs = prompts * 500.0
    window = float(case.hosted.window[0])
    checked = 1 + (guesses if window > context else 0)
    seconds = clock_of(case.hosted, case.rates)(
        prompt_tokens=prompts,
        prompt_pairs=pairs,
        prompts_done=done,
        decodes=decodes * checked,
        decode_context=decodes * context,
    )
    step = step_time(
        case.hosted,
        case.rates,
        work(
            prompt_tokens=prompts,
            prompt_pairs=pairs,
            window_pairs=min(pairs, prompts * window),
            prompts_done=done,
            decodes=decodes,
            checked=checked,
            decode_context=context,
        ),
    )
    assert seconds == pytest.approx(step.total[0], rel=1e-9)


def test_tokens_meet_fewer_experts_where_these_are_unequally_popular() -> None:
    tokens = np.array([0.0, 1.0, 4.0, 1000.0])
    even, uneven = (experts_met(np.array([2 / 8]), tokens, np.array([a])) for a in (1e9, 2.0))
    assert even.tolist() == pytest.approx(1.0 - np.exp(-tokens / 4))
    assert uneven.tolist() == pytest.approx(1.0 - (1.0 + tokens / 8) ** -2)
    assert np.all(uneven <= even)


def test_decoding_one_sequence_is_the_reading_of_the_weights() -> None:
    case = arrays(gpu="A100")
    step = step_time(case.hosted, case.rates, work(decodes=1, decode_context=100))
    read = (8.03e9 - 128256 * 4096) * 2
    assert step.weights[0] == pytest.approx(read / (2.039e12 * case.rates.memory[0]), rel=1e-3)
    assert max(TERMS, key=lambda term: getattr(step, term)[0]) == "weights"


def test_more_clients_give_more_throughput_and_wait_longer() -> None:
    case = arrays()
    clients = np.array([1.0, 4.0, 16.0, 64.0])
    each = [steady_step(case.hosted, case.rates, case.lengths, n[None]).total[0] for n in clients]
    first = [
        first_token_seconds(case.hosted, case.rates, case.lengths, n[None])[0] for n in clients
    ]
    assert each == sorted(each)
    assert first == sorted(first)
    assert (clients / each).tolist() == sorted((clients / each).tolist())


def test_a_request_beside_others_waits_for_the_step_that_runs() -> None:
    case, idle, two = arrays(), np.array([1.0]), np.array([2.0])
    least, some = (
        first_token_seconds(case.hosted, case.rates, case.lengths, clients)[0]
        for clients in (idle, two)
    )
    assert some - least > decode_seconds(case.hosted, case.rates, case.lengths, idle)[0]


def test_decodes_take_their_share_of_a_steps_tokens_from_prompts() -> None:
    one, others = np.array([1.0]), np.array([4.0])
    tight, roomy = (arrays(prompt=8192.0, chunk=chunk) for chunk in (8192, 8196))
    two_steps, one_step = (
        prompt_seconds(case.hosted, case.rates, case.lengths, one, others)[0]
        for case in (tight, roomy)
    )
    step = decode_seconds(tight.hosted, tight.rates, tight.lengths, one)[0]
    assert one_step + 0.5 * step < two_steps < one_step + 2.0 * step


def test_groups_of_devices_wait_for_the_one_that_has_the_prompt() -> None:
    clients = np.array([64.0])
    joined, apart = (
        wave_seconds(case.hosted, case.rates, case.lengths, clients)[0]
        for case in (arrays(MIXTURE, tp=4), arrays(MIXTURE, tp=1, attention_dp=4, ep=4))
    )
    assert apart == pytest.approx(joined, rel=0.5)


def test_narrow_pieces_of_experts_multiply_more_slowly_than_whole_ones() -> None:
    cut, whole = (
        expert_flops_per_second(case.hosted, case.rates)[0]
        for case in (arrays(MIXTURE, tp=8), arrays(MIXTURE, tp=8, ep=8))
    )
    assert 0.5 * whole < cut < 0.95 * whole


def test_matmuls_dealt_out_to_many_devices_take_a_tiles_own_time() -> None:
    depths = 8192 + 8192 / 8 + 8192 + 28672 / 8
    found = wave_products(load_model("Llama-3.1-70B"), device("H100"), 8)
    assert found == pytest.approx(128 * 132 * 80 * depths)

    def matmuls(tp: int) -> float:
        case = arrays("Llama-3.1-70B", "H100", tp=tp, weights="fp8")
        rows = work(decodes=32.0, decode_context=1000.0)
        return float(step_time(case.hosted, case.rates, rows).matmuls[0])

    assert matmuls(8) > 1.3 * matmuls(1) / 8


def test_prompts_that_join_slow_the_others_down() -> None:
    case, running = arrays(), np.array([32.0])
    alone = decode_seconds(case.hosted, case.rates, case.lengths, running)[0]
    mixed = steady_step(case.hosted, case.rates, case.lengths, running).total[0]
    assert alone < mixed < 3 * alone


def test_a_batch_takes_its_prompts_and_then_a_step_per_token() -> None:
    case, batch = arrays(), np.array([8.0])
    whole = static_seconds(case.hosted, case.rates, case.lengths, batch)[0]
    each = decode_seconds(case.hosted, case.rates, case.lengths, batch)[0]
    assert 199 * each < whole < 230 * each


def test_engines_that_never_evict_run_fewer() -> None:
    eager = arrays(completion=4000.0, engine="python", most_sequences=10_000.0)
    careful = arrays(completion=4000.0, engine="native", most_sequences=10_000.0)
    some, fewer = (
        most_running(case.hosted, case.rates, case.lengths)[0] for case in (eager, careful)
    )
    assert fewer < some


def test_weights_that_do_not_fit_leave_no_room() -> None:
    case = arrays("Llama-3.1-70B", "H100")
    assert sequences_that_fit(case.hosted, case.rates, np.array([100.0]))[0] == 0.0


def test_splitting_a_model_costs_all_reduces() -> None:
    one, four = arrays(), arrays(tp=4)
    for case, sent in ((one, False), (four, True)):
        step = step_time(case.hosted, case.rates, work(decodes=1, decode_context=10))
        assert bool(step.communication[0] > 0.0) is sent
