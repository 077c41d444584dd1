"""Reading published tables and holding the model against them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.plan.table_cells import Unreadable
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.prepared import choose
from ridgeline.plan.training.published import COLUMNS, PublishedTraining, read_row, read_table
from ridgeline.plan.training.validate import validate_training

HEADER = (
    "source,model,params_b,layers,hidden,ffn,heads,kv_heads,vocab,seq,gpu,n_gpus,dp,tp,pp,"
    "micro_batch,global_batch,precision,recompute,sharding,metric_name,metric_value,"
    "peak_mem_gb,note"
)
ROW = (
    "lab,Llama-x,8.03,32,4096,14336,32,8,128256,8192,H100,64,64,1,1,"
    "1,128,bf16,none,fsdp,step_time_s,2.0,,"
)


def cells(**changes: str) -> dict[str, str]:
    return dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | changes


def table(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def run_of(**changes: str) -> PublishedTraining:
    found = read_row(1, cells(**changes))
    assert isinstance(found, PublishedTraining), found
    return found


def test_a_missing_column_is_named_with_the_cure(tmp_path: Path) -> None:
    path = table(tmp_path, header=HEADER.replace("vocab,", ""))
    with pytest.raises(InputError, match=r"no column vocab; add it"):
        read_table(path)


@pytest.mark.parametrize("content", ["", HEADER + "\n", "\x00\x01\x02"])
def test_what_is_no_table_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=r"table.csv"):
        read_table(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"layers": "", "model": "x"}, "insufficient", "layers"),
        ({"seq": ""}, "insufficient", "seq"),
        ({"n_gpus": ""}, "insufficient", "n_gpus"),
        ({"gpu": "H101"}, "refused", "H101"),
        ({"dp": "7"}, "refused", "is not n_gpus"),
        ({"precision": "bf17"}, "refused", "bf17"),
        ({"recompute": "half"}, "refused", "half"),
        ({"sharding": "zero9"}, "refused", "zero9"),
        ({"metric_name": "speed"}, "refused", "speed"),
        ({"metric_value": "fast"}, "refused", "metric_value"),
        ({"metric_value": "-1"}, "refused", "metric_value"),
        ({"tp": "two"}, "refused", "tp"),
        ({"adapter": "dora"}, "refused", "lora and qlora"),
        ({"adapter": "lora", "adapter_rank": "few"}, "refused", "adapter_rank"),
        ({"adapter": "lora", "adapter_targets": "q zz"}, "refused", "'zz'"),
        ({"adapter": "lora", "adapter_dropout": "lots"}, "refused", "adapter_dropout"),
    ],
)
def test_a_row_that_cannot_be_estimated_says_why(
    changes: dict[str, str], status: str, reason: str
) -> None:
    found = read_row(1, cells(**changes))
    assert isinstance(found, Unreadable)
    assert (found.status, reason in found.reason) == (status, True), found


def test_every_metric_is_converted_by_its_own_counting() -> None:
    from ridgeline.plan.training.prepared import prepare

    run = run_of()
    seconds = prepare([run], coefficients_for).published_seconds[0]
    assert seconds == 2.0
    rate = 128 * 8192 / 64 / 2.0
    other = run_of(metric_name="tokens_per_s_per_gpu", metric_value=str(rate))
    assert prepare([other], coefficients_for).published_seconds[0] == pytest.approx(2.0)
    whole = {"step_time_ms": 2000.0, "tokens_per_s_total": rate * 64, "samples_per_s_total": 64.0,
             "samples_per_s_per_gpu": 1.0}  # fmt: skip
    for metric, value in whole.items():
        one = run_of(metric_name=metric, metric_value=str(value))
        assert prepare([one], coefficients_for).published_seconds[0] == pytest.approx(2.0), metric
    by_note = {}
    for note in ("flops=model attn_flops=causal", "flops=model attn_flops=full",
                 "flops=hw attn_flops=full"):  # fmt: skip
        one = run_of(metric_name="tflops_per_gpu", metric_value="400", note=note, recompute="full")
        by_note[note] = prepare([one], coefficients_for).published_seconds[0]
    causal, full, hardware = by_note.values()
    assert causal < full < hardware
    assert hardware / full == pytest.approx(4 / 3, rel=0.06)
    share = run_of(metric_name="mfu", metric_value="0.4")
    named = run_of(metric_name="tflops_per_gpu", metric_value=str(0.4 * 989.4))
    times = prepare([share, named], coefficients_for).published_seconds
    assert times[0] == pytest.approx(times[1])


def test_unstated_recomputation_is_the_cheapest_that_fits() -> None:
    roomy = choose(run_of(recompute="", gpu="B200"), coefficients_for)
    assert roomy.layout.recompute == "none"
    cramped = run_of(recompute="", micro_batch="8", global_batch="512")
    chosen = choose(cramped, coefficients_for)
    assert chosen.layout.recompute != "none"


def test_unstated_recomputation_is_by_operator_where_configurations_have_it_so() -> None:
    run = run_of(source="torchtitan of 2026", recompute="")
    assert {one.layout.recompute for one in run.candidates} == {"selective"}


def test_unstated_sharding_is_the_least_that_fits() -> None:
    small = run_of(sharding="", layers="8", params_b="", model="small", vocab="32000", seq="1024")
    assert choose(small, coefficients_for).layout.zero == 0
    large = run_of(sharding="")
    assert choose(large, coefficients_for).layout.zero > 0


def test_hybrid_sharding_takes_groups_and_full_sharding_all_ranks() -> None:
    many = {"n_gpus": "2048", "dp": "2048", "global_batch": "4096"}
    groups = {
        words: choose(run_of(note=words, **many), coefficients_for).layout.fsdp
        for words in ("PaXML, FSDP+DP", "PaXML")
    }
    assert groups["PaXML"] == 2048
    assert groups["PaXML, FSDP+DP"] < 2048
    assert 2048 % groups["PaXML, FSDP+DP"] == 0
    assert choose(run_of(sharding="hsdp", **many), coefficients_for).layout.fsdp < 2048


def test_choosing_never_looks_at_the_answer() -> None:
    open_cells = {"recompute": "", "micro_batch": "", "sharding": ""}
    slow = choose(run_of(**open_cells, metric_value="200"), coefficients_for)
    fast = choose(run_of(**open_cells, metric_value="0.02"), coefficients_for)
    assert slow == fast


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"note": "MaxText (JAX/XLA)"}, "jax"),
        ({"note": "Megatron-DeepSpeed"}, "legacy"),
        ({"precision": "fp16"}, "legacy"),
        ({"gpu": "V100-SXM2-32GB", "precision": ""}, "legacy"),
        ({"note": "NeMo 24.12"}, "megatron"),
        ({"note": "NeMo 24.07"}, "megatron-2024"),
        ({"source": "MLPerf Training v4.0", "note": "NeMo 24.04"}, "megatron"),
        ({"source": "InternLM/InternEvo"}, "internevo"),
        ({"note": "Megatron-LM of 2024"}, "megatron-lm"),
        ({"note": "Megatron-LM, NeMo 24.12"}, "megatron"),
        ({"note": "PaddlePaddle 2.5", "precision": "fp16"}, "paddle"),
        ({"note": "PaddlePaddle of 2022", "gpu": "V100-SXM2-32GB"}, "paddle"),
        ({"source": "NVIDIA/dgxc-benchmarking"}, "megatron"),
        ({"source_path": "training/nvidia/llama2_7b", "note": "transformers"}, "hugging-face"),
        ({"note": "reported tflops=193 (Megatron formula)"}, "torch"),
        ({}, "torch"),
    ],
)
def test_words_of_a_row_name_the_software(changes: dict[str, str], name: str) -> None:
    assert run_of(**changes).workload.stack.name == name


@pytest.mark.parametrize(
    ("source", "note", "field", "value"),
    [
        ("torchtune", "", "chunked_logits", True),
        ("torchtune", "logits not chunked", "chunked_logits", False),
        ("lab", "chunked cross entropy", "chunked_logits", True),
        ("lab", "", "chunked_logits", False),
        ("lab", "grads freed in backward", "frees_gradients", True),
        ("lab", "activations offloaded to CPU", "offloads_activations", True),
        ("lab", "lengths vary up to 2,048", "ragged", True),
        ("litgpt config hub", "", "step_copies", True),
        ("litgpt config hub", "", "sums_whole_gradients", True),
        ("axolotl", "", "step_copies", True),
        ("torchtitan", "", "step_copies", False),
        ("lab", "no flash attention", "fused_attention", False),
        ("Megatron-DeepSpeed", "", "fused_attention", False),
        ("Megatron-DeepSpeed", "flash attention", "fused_attention", True),
        ("NeMo", "CUDA graphs", "captured", True),
        ("NeMo", "partial CUDA graphs", "captured", False),
        ("NeMo", "", "captured", False),
    ],
)
def test_a_note_says_what_a_step_frees(source: str, note: str, field: str, value: bool) -> None:
    assert getattr(run_of(source=source, note=note).workload.stack, field) is value


@pytest.mark.parametrize(
    ("sharding", "seconds"), [("zero3", 3e-3), ("zero2", 0.0), ("ddp", 0.0), ("", 0.0)]
)
def test_deepspeed_hooks_modules_only_where_it_gathers_them(sharding: str, seconds: float) -> None:
    stack = run_of(note="DeepSpeed 0.10", sharding=sharding).workload.stack
    assert stack.name == "deepspeed"
    assert stack.hook_seconds == seconds


@pytest.mark.parametrize(
    ("modules", "core", "experts"),
    [
        ("", True, False),
        ("recompute_modules=core_attn+moe", True, True),
        ("recompute_modules=moe+mlp", False, True),
        ("recompute_modules=layernorm+moe_act", True, False),
    ],
)
def test_a_note_names_the_modules_that_are_recomputed(
    modules: str, core: bool, experts: bool
) -> None:
    stack = run_of(note=f"Megatron-core; {modules}").workload.stack
    assert (stack.repeats_core, stack.repeats_experts) == (core, experts)


@pytest.mark.parametrize(
    ("gpu", "sharding", "away"),
    [("GB200", "fsdp", True), ("GB200", "zero1", False), ("H100", "fsdp", False)],
)
def test_recipes_of_sharded_runs_use_a_host_that_is_near(
    gpu: str, sharding: str, away: bool
) -> None:
    run = run_of(source="Megatron-Bridge", gpu=gpu, sharding=sharding)
    assert run.workload.stack.offloads_activations is away


def peak_of(tmp_path: Path, **changes: str) -> float:
    """The peak, in GiB, that a row of one device is held against."""
    alone = {"n_gpus": "1", "dp": "1", "global_batch": "1", "peak_mem_gb": "20"}
    row = cells(**(alone | changes))
    header = ",".join(row)
    path = table(tmp_path, ",".join(f'"{value}"' for value in row.values()), header=header)
    peak = validate_training(path).rows[0].peak_memory_predicted
    assert peak is not None
    return peak


def test_a_peak_is_held_against_what_the_source_has_read(tmp_path: Path) -> None:
    whole, reserved, allocated = (
        peak_of(tmp_path, note=note) for note in ("", "peak reserved", "peak allocated")
    )
    assert whole - reserved == pytest.approx(1.5e9 / 2**30)  # the context of a device alone
    assert peak_of(tmp_path, source="torchtitan") < whole
    assert allocated < reserved


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2.0), ("fp8", 1.0)])
def test_weights_that_nobody_trains_are_kept_as_megatron_multiplies_them(
    precision: str, width: float
) -> None:
    run = run_of(adapter="lora", source="NeMo", precision=precision)
    assert run.workload.adapters.weight_bytes == width
    assert run_of(adapter="lora", source="torchtune").workload.adapters.weight_bytes == 2.0


@pytest.mark.parametrize(
    ("note", "layers_inputs"),
    [("bitsandbytes of 2023", 1.0), ("bitsandbytes of 2025", 0.0), ("bitsandbytes", 0.0)],
)
def test_four_bits_of_bitsandbytes_kept_inputs_once(
    tmp_path: Path, note: str, layers_inputs: float
) -> None:
    adapted = {"adapter": "qlora", "adapter_rank": "8", "adapter_targets": "q v"}
    adapted |= {"adapter_dropout": "0.05"}
    plain = peak_of(tmp_path, note="allocated", **adapted)
    peak = peak_of(tmp_path, note=f"allocated; {note}", **adapted)
    inputs = 32 * 8192 * 2 * (4096 + 4096 + 14336)
    assert (peak - plain) * 2**30 == pytest.approx(layers_inputs * inputs, rel=0.01)


def test_a_stated_network_replaces_the_typical_one() -> None:
    typical = run_of().cluster.network_bytes_per_second
    stated = run_of(note="4x100Gb RoCE per node").cluster.network_bytes_per_second
    assert typical == 50e9
    assert stated == pytest.approx(4 * 100e9 / 8 / 8)


def test_recomputing_by_operator_frees_most_of_what_full_recomputation_does(
    tmp_path: Path,
) -> None:
    ways = ("none", "selective-layer", "selective-op", "full")
    rows = [
        ROW.replace(",none,fsdp,step_time_s,2.0,", f",{way},fsdp,step_time_s,2.0,50")
        for way in ways
    ]
    found = validate_training(table(tmp_path, *rows))
    peaks = [row.peak_memory_predicted or 0.0 for row in found.rows]
    assert peaks == sorted(peaks, reverse=True)
    assert (peaks[0] - peaks[2]) / (peaks[0] - peaks[3]) == pytest.approx(0.7, abs=0.05)


def test_a_row_that_ran_out_of_memory_is_judged_on_the_verdict(tmp_path: Path) -> None:
    note = "outcome=OOM (no metric)"
    gone = ROW.replace(",step_time_s,2.0,,", f",,,,{note}").replace(",1,128,bf16", ",64,4096,bf16")
    fine = ROW.replace(",step_time_s,2.0,,", f",,,,{note}")
    found = validate_training(table(tmp_path, gone, fine))
    assert [row.status for row in found.rows] == ["ok", "ok"]
    assert (found.overall.oom_rows, found.overall.oom_right) == (2, 1)
    assert found.rows[0].verdict == "oom"


def test_the_document_keeps_the_contract(tmp_path: Path) -> None:
    faster = ROW.replace("step_time_s,2.0", "tokens_per_s_per_gpu,9000")
    found = validate_training(table(tmp_path, ROW, faster, ROW.replace("H100", "H101")))
    first, second, third = found.rows
    assert (first.status, second.status, third.status) == ("ok", "ok", "refused")
    for row in (first, second):
        assert row.predicted is not None
        assert row.low is not None
        assert row.high is not None
        assert row.published is not None
        assert row.low < row.predicted < row.high
    assert first.predicted is not None
    assert second.predicted is not None
    assert first.error == pytest.approx(first.predicted / 2.0 - 1.0)
    assert second.error == pytest.approx(9000 / second.predicted - 1.0)
    assert set(found.by_source) == {"lab"}
    assert found.overall.refused == 1


def test_a_calibration_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.toml"):
        validate_training(table(tmp_path, ROW), calibration="nowhere.toml")


def test_the_columns_that_must_be_there_are_in_the_published_table() -> None:
    assert set(COLUMNS) <= set(HEADER.split(","))


def published_table() -> Path:
    for root in Path(__file__).resolve().parents:
        found = root / "shared" / "data" / "published_training.csv"
        if found.exists():
            return found
    pytest.skip("the published table is not here (shared/data/published_training.csv)")


def test_accuracy_has_not_got_worse_than_the_committed_figures() -> None:
    gate = json.loads(
        (Path(__file__).parents[2] / "docs" / "results" / "accuracy_training.json").read_text()
    )
    whole = validate_training(published_table()).overall
    seen = {
        "dense_median": whole.dense.median,
        "dense_p90": whole.dense.p90,
        "experts_median": whole.experts.median,
        "memory_median": whole.memory_median,
        "regret_median": whole.regret_median,
    }
    for name, value in seen.items():
        assert value is not None
        assert value <= gate[name] + 0.002, name
    assert whole.oom_right >= gate["oom_right"]
    assert whole.ok >= gate["rows_judged"]


@pytest.mark.slow
def test_the_shipped_calibration_is_what_a_fit_would_find() -> None:
    """No coefficient was edited by hand: the fit's cost is flat where the file stands."""
    from bench.refit_training import fit, observed

    from ridgeline.plan.training.coefficients import prior_coefficients, priors
    from ridgeline.plan.training.prepared import prepare

    runs = [one for one in read_table(published_table()) if isinstance(one, PublishedTraining)]
    prepared = prepare(runs, coefficients_for)
    parameters = priors()
    start = np.log([_shipped(one.architecture, one.key, one.precisions) for one in parameters])
    seen = observed(prepared, np.ones(len(runs), dtype=bool))
    moved = fit(seen, parameters, start, base=prior_coefficients, rounds=3)
    assert math.exp(float(np.max(np.abs(moved - start)))) < 1.15


def _shipped(architecture: str, key: str, precisions: tuple[str, ...]) -> float:
    from ridgeline.hardware import devices

    part = next(one for one in devices() if one.architecture.startswith(architecture))
    coefficients = coefficients_for(part)
    return coefficients.gemm[precisions[0]] if key == "gemm" else getattr(coefficients, key)
