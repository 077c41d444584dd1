"""Reading tables of published serving runs and holding the model against them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.models import load_model
from ridgeline.plan.notes import read_serving_note
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.engines import engine_of
from ridgeline.plan.serving.prepared import outcome, prepare
from ridgeline.plan.serving.published import (
    COLUMNS,
    PublishedServing,
    load_of,
    read_row,
    read_table,
)
from ridgeline.plan.serving.validate import validate_serving
from ridgeline.plan.table_cells import Unreadable

CELLS = {
    "source": "lab",
    "source_path": "",
    "model": "Llama-3.1-8B",
    "params_b": "8.03",
    "layers": "32",
    "hidden": "4096",
    "ffn": "14336",
    "heads": "32",
    "kv_heads": "8",
    "vocab": "128256",
    "gpu": "H100-SXM-80GB",
    "n_gpus": "1",
    "tp": "1",
    "pp": "1",
    "weight_dtype": "fp8",
    "kv_dtype": "",
    "isl": "1000",
    "osl": "1000",
    "batch_or_concurrency": "max load",
    "metric_name": "output_tokens_per_s_total",
    "metric_value": "14000",
    "note": "TensorRT-LLM",
}
SHARED = Path(__file__).parents[4] / "shared" / "data" / "published_serving.csv"


def table(path: Path, *rows: dict[str, str]) -> Path:
    file = path / "table.csv"
    lines = [",".join(CELLS), *(",".join((CELLS | row).values()) for row in rows)]
    file.write_text("\n".join(lines) + "\n")
    return file


def run_of(**changes: str) -> PublishedServing:
    found = read_row(1, CELLS | changes)
    assert isinstance(found, PublishedServing), found
    return found


def test_a_missing_column_is_named_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(",".join(name for name in COLUMNS if name != "osl") + "\n")
    with pytest.raises(InputError, match=r"no column osl; add it"):
        read_table(path)


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"gpu": "H101-XYZ"}, "refused", "H101"),
        ({"gpu": "8xH100"}, "refused", "give H100, and how many in n_gpus"),
        ({"gpu": "MI300X x8"}, "refused", "give MI300X, and how many in n_gpus"),
        ({"gpu": "GTX 970"}, "refused", "unknown device"),
        ({"metric_name": "speed"}, "refused", "speed"),
        ({"metric_value": "fast"}, "refused", "metric_value"),
        ({"metric_value": "-1"}, "refused", "metric_value"),
        ({"weight_dtype": "int3"}, "refused", "int3"),
        ({"kv_dtype": "int3"}, "refused", "int3"),
        ({"weight_dtype": "gptq-int3"}, "refused", "use bf16"),
        ({"weight_dtype": "fp8-int4"}, "refused", "no format is so called"),
        ({"model": "Llama-3.1-8B-AWQ", "weight_dtype": ""}, "insufficient", "rounded weights"),
        ({"n_gpus": "3", "tp": "2"}, "refused", "does not divide"),
        ({"isl": ""}, "insufficient", "isl"),
        ({"pp": "2", "n_gpus": "3"}, "refused", "x pp 2 does not divide"),
        ({"pp": "2", "n_gpus": "1"}, "refused", "x pp 2 does not divide"),
        ({"batch_or_concurrency": ""}, "insufficient", "batch_or_concurrency"),
        ({"note": "MT-bench, EAGLE-3"}, "insufficient", "acceptance"),
        ({"model": "x", "layers": ""}, "insufficient", "layers"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(
    changes: dict[str, str], status: str, reason: str
) -> None:
    found = read_row(1, CELLS | changes)
    assert isinstance(found, Unreadable)
    assert (found.status, reason in found.reason) == (status, True), found


@pytest.mark.parametrize(
    ("words", "note", "kind", "number"),
    [
        ("16", "closed loop", "closed", 16),
        ("16", "static batch", "static", 16),
        ("1", "", "static", 1),
        ("rate 31.4/s", "", "open", 31.4),
        ("5 req/s", "", "open", 5),
        ("burst 1000", "", "burst", 1000),
        ("max load (infinite arrival rate)", "", "saturated", math.inf),
    ],
)
def test_a_load_is_read_from_words(words: str, note: str, kind: str, number: float) -> None:
    found = load_of(words, read_serving_note(note))
    assert (found.kind, found.number) == (kind, number)


def test_clients_whose_requests_are_alike_stay_together_where_prompts_run_first() -> None:
    row = {"note": "ATOM, equal lengths", "batch_or_concurrency": "64", "isl": "1000", "osl": "500"}
    alike, unlike = (
        prepare([run_of(**(row | {"note": note}))]) for note in (row["note"], "ATOM of 2026")
    )
    logs = read_calibration().logs()
    first, each = (
        [getattr(outcome(one, logs), name)[0] for one in (alike, unlike)]
        for name in ("first_token_seconds", "next_token_seconds")
    )
    assert first[0] > 2.0 * first[1]
    assert each[0] < each[1]


@pytest.mark.parametrize(("note", "kind"), [("vLLM 0.11.0", "closed"), ("TensorRT-LLM", "static")])
def test_a_single_client_waits_for_a_server_in_python(note: str, kind: str) -> None:
    assert run_of(batch_or_concurrency="1", note=f"{note}, closed loop").load.kind == kind


def shown(**changes: str) -> dict[str, float]:
    row = {"batch_or_concurrency": "16", "isl": "1000", "osl": "500", **changes}
    found = outcome(prepare([run_of(**row)]), read_calibration().logs())
    return {name: float(getattr(found, name)[0]) for name in type(found).__dataclass_fields__}


def test_a_closed_loop_of_unequal_requests_ends_with_places_that_are_empty() -> None:
    alike, uneven, long = (
        shown(note=f"vLLM 0.11.0; closed loop; {words}")["tokens_per_second"]
        for words in ("80 requests", "80 requests; random lengths", "8000 requests; random lengths")
    )
    # An SGLang page prints 13.5 to 13.6 of 16 clients at work over 80 requests of even lengths.
    assert uneven / alike == pytest.approx(13.6 / 16, abs=0.03)
    assert long == pytest.approx(alike, rel=0.01)


def test_first_prompts_wait_for_each_other_as_often_as_there_are_few_requests() -> None:
    few, many, known = (
        shown(note=f"vLLM 0.11.0; closed loop; {words}")["first_token_seconds"]
        for words in ("32 requests", "1600 requests", "32 requests; first prompts cached before")
    )
    assert few > 1.5 * many
    assert known < many


def test_recipes_of_sglang_look_at_their_queue_less_often_than_it_does_alone() -> None:
    assert engine_of("InferenceX recipes, SGLang 0.5.9").name == "sglang-recipes"
    plain, recipe = (
        shown(note=note)["first_token_seconds"]
        for note in ("SGLang 0.5.9; closed loop", "InferenceX; SGLang 0.5.9; closed loop")
    )
    assert recipe > 1.5 * plain


def test_recorded_conversations_are_of_all_lengths() -> None:
    assert read_serving_note("vLLM 0.11.0; ShareGPT, 1000 prompts all at once").conversations
    assert not read_serving_note("1000 requests all at once").conversations


def test_a_column_says_how_wide_heads_are_that_do_not_divide_the_hidden_size() -> None:
    sizes = {"heads": "96", "kv_heads": "8", "head_dim": "128", "params_b": "106.85"}
    found = run_of(
        model="GLM-4.5-Air", layers="46", hidden="4096", ffn="1408", vocab="151552", experts="128",
        topk="8", **sizes,
    )  # fmt: skip
    assert found.model.head_dim == 128


def test_engines_are_known_by_their_words() -> None:
    assert engine_of("gpt-fast README").name == "loop"
    assert engine_of("Splitwise perf_model.csv").name == "eager"
    assert engine_of("vLLM 0.11.0 on GKE").name == "python"
    assert engine_of("a lab").name == "python"
    assert engine_of("NIM 1.8.0 (TensorRT-LLM)").name == "nim"
    assert engine_of("vLLM 0.4.2, enforce_eager=True").name == "eager"
    assert engine_of("vLLM 0.4.2, enforce_eager=False").name == "python-2024"
    assert engine_of("real vLLM 0.19.0 runs").name == "python-2026"
    assert engine_of("vLLM 0.10.0").name == "python"
    assert engine_of("llama.cpp b3259").name == "llama.cpp"
    assert engine_of("ExLlamaV2 0.0.11").name == "llama.cpp"
    assert engine_of("FasterTransformer 5.3").name == "fastertransformer"
    assert engine_of("SGLang cookbook").name == "sglang"


@pytest.mark.parametrize(
    "name", ["amd/Llama-3.1-8B-Instruct-FP8-KV", "Llama-3.1-8B-GPTQ-Int4", "Llama-3.1-8B-w8a8"]
)
def test_the_format_in_a_model_name_leaves_its_shape(name: str) -> None:
    found = run_of(model=name, layers="", hidden="", ffn="", heads="", kv_heads="", vocab="")
    assert found.model == run_of().model


def test_a_command_asks_for_the_format_of_a_rounded_model_apart() -> None:
    with pytest.raises(InputError, match=r"that is Qwen3-8B with rounded weights: give Qwen3-8B"):
        load_model("Qwen/Qwen3-8B-FP8")


@pytest.mark.parametrize(
    ("written", "means", "cache"),
    [
        ("GPTQ-Int8", "int8", ""),
        ("AWQ-INT4", "int4", "fp8_e5m2"),
        ("4-bit GPTQ", "int4", ""),
        ("fp8_e4m3", "fp8", "FP8"),
        ("w8a8-quark", "w8a8", "bfloat16"),
    ],
)
def test_formats_are_read_as_checkpoints_and_engines_write_them(
    written: str, means: str, cache: str
) -> None:
    found, plain = run_of(weight_dtype=written, kv_dtype=cache), run_of(weight_dtype=means)
    assert found.hosted["shared_bytes"] == plain.hosted["shared_bytes"]
    assert (found.precision, found.widened) == (plain.precision, plain.widened)
    if not cache:
        assert found.hosted["cache_bytes"] == plain.hosted["cache_bytes"]


def test_an_engine_that_memory_alone_limits_runs_more_at_once_than_its_like() -> None:
    usual, unlimited = (engine_of(f"{name} on a GPU") for name in ("vLLM", "SGLang"))
    assert unlimited.like == usual.name
    assert unlimited.most_on(device("a100")) > 4 * usual.most_on(device("a100"))


def test_what_a_note_states_replaces_what_is_usual() -> None:
    run = run_of(note="vLLM, max_num_seqs 128, max_num_batched_tokens 2048, KV 41,408 tokens")
    assert (run.most_sequences, run.chunk) == (128, 2048)
    assert run.hosted["cache_room_bytes"] == pytest.approx(41_408 * 32 * 2 * 8 * 128)


def test_a_power_limit_slows_products_and_not_the_memory() -> None:
    free, held = run_of(gpu="A100-SXM4-80GB"), run_of(gpu="A100-SXM4-80GB@330W")
    assert held.hosted["peak"] / free.hosted["peak"] == pytest.approx(math.sqrt(330 / 400))
    assert held.hosted["bandwidth"] == free.hosted["bandwidth"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric_name": "itl_ms", "metric_value": "1.2", "batch_or_concurrency": "8"}, "below"),
        ({"metric_name": "ttft_ms", "metric_value": "1", "batch_or_concurrency": "1"}, "below"),
        (
            {"metric_name": "tokens_per_s_batch1", "metric_value": "900",
             "batch_or_concurrency": "1"},
            "below",
        ),
        ({"metric_value": "90000"}, "above the ceiling"),
        (
            {"metric_value": "9000", "batch_or_concurrency": "4", "weight_dtype": "bf16"},
            "above the ceiling",
        ),
        ({"model": "Llama-3.1-70B", "params_b": "", "layers": "80", "hidden": "8192",
          "ffn": "28672", "heads": "64", "weight_dtype": "bf16",
          "metric_value": "900"}, "do not fit"),
    ],
)  # fmt: skip
def test_what_physics_forbids_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    row = validate_serving(table(tmp_path, changes)).rows[0]
    assert (row.status, row.error) == ("refused", None)
    assert words in row.reason


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("mean_ttft_ms", "ttft_ms"),
        ("e2e_latency_s", "e2e_s"),
        ("output_tokens_per_s", "output_tokens_per_s_total"),
        ("tokens_per_s_per_user", "tokens_per_s_each"),
    ],
)
def test_a_metric_may_be_named_as_load_tests_name_it(named: str, meant: str) -> None:
    assert run_of(metric_name=named).metric == run_of(metric_name=meant).metric == meant


def test_a_geforce_may_sum_in_sixteen_bits(tmp_path: Path) -> None:
    """ExLlama's README prints 1,920 prompt tokens of a 7B within 138 ms on an RTX 4090."""
    asked = {"gpu": "RTX-4090", "weight_dtype": "int4", "metric_name": "ttft_ms", "isl": "1920",
             "model": "Llama-7B", "params_b": "6.74", "ffn": "11008", "kv_heads": "32",
             "vocab": "32000", "batch_or_concurrency": "1"}  # fmt: skip
    rows = validate_serving(
        table(tmp_path, *(asked | {"metric_value": value} for value in ("138", "70")))
    ).rows
    assert [row.status for row in rows] == ["ok", "refused"]


def test_the_first_token_of_a_saturated_server_is_not_judged(tmp_path: Path) -> None:
    row = validate_serving(table(tmp_path, {"metric_name": "ttft_ms"})).rows[0]
    assert row.status == "insufficient"
    assert "saturated" in row.reason


def test_every_judged_row_has_its_interval(tmp_path: Path) -> None:
    path = table(tmp_path, {}, {"metric_name": "itl_ms", "metric_value": "9",
                                "batch_or_concurrency": "32"})  # fmt: skip
    for row in validate_serving(path).rows:
        assert row.status == "ok"
        assert row.low is not None
        assert row.predicted is not None
        assert row.high is not None
        assert row.low < row.predicted < row.high


def test_sources_left_out_stay_within_the_committed_errors() -> None:
    if not SHARED.exists():
        pytest.skip("the published table is not here (shared/data/published_serving.csv)")
    found = validate_serving(SHARED)
    limits = {
        "next_token dense": 0.15,
        "first_token dense": 0.25,
        "throughput dense": 0.20,
        "throughput experts": 0.30,
    }
    for name, limit in limits.items():
        median = found.by_metric[name].median
        assert median is not None
        assert median <= limit, name
    assert found.overall.coverage is not None
    assert 0.75 <= found.overall.coverage <= 0.90


def test_decodes_beyond_the_captured_context_are_launched_by_the_host(tmp_path: Path) -> None:
    """A small model's step is shorter than launching it, so that the graph's end shows."""
    small = {"model": "Qwen2-0.5B", "params_b": "", "layers": "24", "hidden": "896", "ffn": "4864"}
    small |= {"heads": "14", "kv_heads": "2", "vocab": "151936", "weight_dtype": "bf16"}
    small |= {"batch_or_concurrency": "1", "metric_value": "9", "gpu": "A100"}
    small |= {"metric_name": "itl_ms", "osl": "64"}
    engines = ("vLLM 0.4.2", "vLLM 0.9.0")
    rows = [small | {"note": note, "isl": isl} for note in engines for isl in ("6000", "14000")]
    found = [one.predicted or 0.0 for one in validate_serving(table(tmp_path, *rows)).rows]
    assert found[1] > 1.5 * found[0]
    assert found[3] < 1.1 * found[2]


def test_hardware_without_a_fitted_run_is_as_uncertain_as_before_any_run(tmp_path: Path) -> None:
    rows = [{"gpu": gpu, "metric_value": "9000"} for gpu in ("H100-SXM-80GB", "MI300X")]
    known, unknown = validate_serving(table(tmp_path, *rows)).rows
    widths = [(one.high or 0.0) / (one.predicted or 1.0) for one in (known, unknown)]
    assert widths[0] < 1.25
    assert widths[1] == pytest.approx(math.exp(1.2816 * 0.25), rel=1e-3)


def test_stages_of_a_pipeline_hold_what_one_device_does_not(tmp_path: Path) -> None:
    """As many groups as stages are on their way at once, each as slow as on one device."""
    alone = {"batch_or_concurrency": "32", "metric_name": "itl_ms", "metric_value": "8"}
    rate = {"metric_name": "output_tokens_per_s_total", "metric_value": "3000"}
    stages = {"pp": "2", "n_gpus": "2"}
    large = {"model": "Llama-3.3-70B", "params_b": "70.55", "layers": "80", "hidden": "8192"}
    large |= {"ffn": "28672", "heads": "64", "weight_dtype": "fp8", "batch_or_concurrency": "16"}
    rows = [
        alone,
        alone | stages | {"batch_or_concurrency": "64"},
        alone | rate,
        alone | rate | stages | {"batch_or_concurrency": "64"},
        alone | stages | {"batch_or_concurrency": "1"},
        alone | {"batch_or_concurrency": "1"},
        alone | large | stages | {"gpu": "L40S", "metric_value": "120"},
        alone | large | {"gpu": "L40S", "metric_value": "120"},
    ]
    found = validate_serving(table(tmp_path, *rows)).rows
    one, two, slow, fast, single, plain, held, not_held = (row.predicted or 0.0 for row in found)
    assert two == pytest.approx(one)
    assert fast == pytest.approx(2.0 * slow)
    assert single == pytest.approx(plain)
    assert held > 0.0
    assert not_held == 0.0
