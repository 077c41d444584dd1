"""Layouts beyond tensor parallelism: attention data parallelism, experts, two pools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.serving.test_serving_table import CELLS

from ridgeline.cost.serving.clock import clock_of
from ridgeline.cost.serving.mean_steps import RequestLengths, steady_step
from ridgeline.cost.serving.setting import ServingLayout, host
from ridgeline.cost.serving.step import Work, experts_met, step_time
from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.models import load_model
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.estimate import arrays_of
from ridgeline.plan.serving.prepared import in_metric, outcome, prepare
from ridgeline.plan.serving.published import PublishedServing, read_row
from ridgeline.plan.serving.question import replica_of
from ridgeline.plan.table_cells import Unreadable

MIXTURE = CELLS | {
    "model": "DeepSeek-R1", "params_b": "671", "layers": "61", "hidden": "7168", "ffn": "2048",
    "heads": "128", "kv_heads": "128", "vocab": "129280", "gpu": "GB200", "n_gpus": "40", "tp": "",
    "isl": "1024", "osl": "1024", "batch_or_concurrency": "512", "metric_name": "itl_ms",
    "metric_value": "14.7",
}  # fmt: skip
POOLS = (
    "DISAGGREGATED sglang 0.5.8: prefill 2 workers x tp1 dp4 ep4 (bs 1),"
    " decode 1 workers x tp1 dp32 ep32 (bs 64); MLA"
)


def run_of(**changes: str) -> PublishedServing:
    found = read_row(1, MIXTURE | changes)
    assert isinstance(found, PublishedServing), found
    return found


def predicted(run: PublishedServing) -> float:
    prepared = prepare([run])
    return float(in_metric(prepared, outcome(prepared, read_calibration().logs()))[0])


def test_words_and_columns_of_two_pools_mean_the_same() -> None:
    columns = {
        "prefill_workers": "2", "prefill_dp": "4", "prefill_ep": "4", "prefill_batch": "1",
        "decode_workers": "1", "decode_dp": "32", "decode_ep": "32", "decode_batch": "64",
    }  # fmt: skip
    by_note, by_column = run_of(note=POOLS), run_of(note="sglang, MLA", **columns)
    assert by_note.prefill == by_column.prefill
    assert by_note.layout == by_column.layout == ServingLayout(attention_dp=32, ep=32)
    assert predicted(by_note) == predicted(by_column)


def test_pools_that_do_not_come_to_the_devices_are_refused() -> None:
    found = read_row(1, MIXTURE | {"note": POOLS, "n_gpus": "41"})
    assert isinstance(found, Unreadable)
    assert "41" in found.reason
    assert "40" in found.reason


def test_disaggregated_without_workers_is_refused_by_name() -> None:
    found = read_row(1, MIXTURE | {"note": "DISAGGREGATED, MLA"})
    assert isinstance(found, Unreadable)
    assert found.status == "refused"
    assert "workers" in found.reason


def test_a_prefill_pool_that_starves_the_decodes_bounds_their_batch() -> None:
    few = POOLS.replace("prefill 2", "prefill 1").replace("bs 64", "bs 512")
    many = POOLS.replace("prefill 2", "prefill 32").replace("bs 64", "bs 512")
    load = {"batch_or_concurrency": "16384", "isl": "8192", "osl": "256"}
    assert predicted(run_of(note=few, n_gpus="36", **load)) < predicted(
        run_of(note=many, n_gpus="160", **load)
    )


def test_groups_share_experts_and_split_the_cache() -> None:
    model, part = load_model("deepseek-v3"), device("b200")
    kept = {"weights": "fp8", "cache": "fp8"}
    together = host(model, part, ServingLayout(tp=8), **kept)
    apart = host(model, part, ServingLayout(attention_dp=8, ep=8), **kept)
    assert apart["expert_bytes"] == together["expert_bytes"]
    assert apart["cache_bytes"] == together["cache_bytes"]  # each rank of tp keeps all of a latent
    assert apart["shared_bytes"] == pytest.approx(8 * together["shared_bytes"])
    assert apart["groups"] == 8.0


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (ServingLayout(tp=3), "does not divide"),
        (ServingLayout(tp=8, ep=3), "ep 3 must divide"),
        (ServingLayout(tp=8, attention_dp=0), "1 or more"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: ServingLayout, words: str) -> None:
    with pytest.raises(InputError, match=words):
        host(load_model("deepseek-v3"), device("b200"), layout, weights="fp8", cache="fp8")


def test_experts_of_a_dense_model_are_refused() -> None:
    with pytest.raises(InputError, match="no experts"):
        host(
            load_model("llama-3-8b"), device("h100"), ServingLayout(tp=2, ep=2),
            weights="bf16", cache="bf16",
        )  # fmt: skip


@given(share=st.floats(0.001, 0.5), tokens=st.floats(1.0, 1e5), evenness=st.floats(0.3, 30.0))
def test_uneven_routing_meets_no_more_experts_than_even(
    share: float, tokens: float, evenness: float
) -> None:
    met = float(experts_met(np.array(share), np.array(tokens), np.array(evenness)))
    assert 0.0 < met <= 1.0 - (1.0 - share) ** tokens + 1e-9


@given(prompt=st.integers(0, 8192), decodes=st.integers(0, 256), context=st.integers(1, 10_000))
def test_the_clock_of_a_mixture_is_the_formula_of_its_step(
    prompt: int, decodes: int, context: int
) -> None:
    replica = replica_of(
        load_model("deepseek-v3"), "b200", tp=8, weights="fp8", prompt=1000.0, completion=100.0
    )
    arrays = arrays_of([replica], read_calibration())
    done = 1 if prompt else 0
    pairs = prompt * (prompt + 1) / 2
    values = {
        "prompt_tokens": prompt, "prompt_pairs": pairs, "window_pairs": pairs,
        "prompts_done": done, "decodes": decodes, "decode_context": context, "prompt_groups": 1.0,
        "checked": 1.0,
    }  # fmt: skip
    work = Work(**{name: np.array([float(value)]) for name, value in values.items()})
    formula = float(step_time(arrays.hosted, arrays.rates, work).total[0])
    found = clock_of(arrays.hosted, arrays.rates)(
        prompt_tokens=prompt,
        prompt_pairs=pairs,
        prompts_done=done,
        decodes=decodes,
        decode_context=context * decodes,
    )
    if prompt or decodes:
        assert found == pytest.approx(formula, rel=1e-6)


def test_prompts_that_wait_for_one_another_keep_no_group_idle() -> None:
    """TensorRT-LLM's recipes balance them; without, all groups wait for the one with a prompt."""
    replica = replica_of(
        load_model("qwen3-235b-a22b"), "b200", tp=1, attention_dp=4, ep=4, engine="native",
        prompt=32768.0, completion=1024.0,
    )  # fmt: skip
    arrays = arrays_of([replica], read_calibration())
    alone = replace(arrays.lengths, balance=np.zeros(1))

    def step(lengths: RequestLengths, running: float) -> float:
        found = steady_step(arrays.hosted, arrays.rates, lengths, np.array([running]))
        return float(found.total[0])

    assert step(arrays.lengths, 160.0) < step(alone, 160.0) / 2
    assert step(arrays.lengths, 1.0) == step(alone, 1.0)


def test_an_all_reduce_takes_the_faster_of_two_ways() -> None:
    """One kernel fetches few bytes; a pipeline that must fill first carries many."""
    replica = replica_of(load_model("llama-3-70b"), "mi300x", tp=8, prompt=9000.0, completion=10.0)
    arrays = arrays_of([replica], read_calibration())
    hosted, rates = arrays.hosted, arrays.rates

    def sent(tokens: float) -> float:
        names = Work.__dataclass_fields__
        values = dict.fromkeys(names, 0.0) | {"prompt_tokens": tokens}
        values |= {"prompt_groups": 1.0, "checked": 1.0}
        work = Work(**{name: np.array([values[name]]) for name in names})
        return float(step_time(hosted, rates, work).communication[0]) / 160

    links = 7 / 4 * 8192 * 2 / (7 * 64e9 * float(rates.link[0]))
    few = (sent(3) - sent(2)) - links
    assert few == pytest.approx(7 / 4 * 8192 * 2 / float(rates.copy_bytes_per_second[0]))
    assert sent(8192) - sent(4096) == pytest.approx(4096 * links)
    assert sent(8192) - 8192 * links == pytest.approx(8e-5 + 3 * float(rates.reduce_seconds[0]))


@pytest.mark.parametrize(("context", "replays"), [(8000, True), (8400, False)])
def test_the_clock_ends_captured_graphs_where_the_formula_does(context: int, replays: bool) -> None:
    replica = replica_of(
        load_model("qwen2.5-0.5b"), "a100", engine="python-2024", prompt=9000.0, completion=10.0
    )
    arrays = arrays_of([replica], read_calibration())
    nothing = ("prompt_tokens", "prompt_pairs", "window_pairs", "prompts_done")
    values = dict.fromkeys(nothing, 0.0) | {"decodes": 2.0, "decode_context": float(context)}
    values |= {"prompt_groups": 1.0, "checked": 1.0}
    work = Work(**{name: np.array([value]) for name, value in values.items()})
    formula = step_time(arrays.hosted, arrays.rates, work)
    found = clock_of(arrays.hosted, arrays.rates)(decodes=2, decode_context=2 * context)
    assert found == pytest.approx(float(formula.total[0]), rel=1e-6)
    launching = float((arrays.hosted.layers * arrays.rates.eager_seconds + formula.host)[0])
    assert (found < launching) is replays
