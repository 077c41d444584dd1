"""`predict_training`: what it answers, what it refuses, what measured steps change."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.hardware.storage import StorageRates, save_storage
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.disk import cluster_with_disk
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.trained import Trained
from ridgeline.records.layout import Layout
from ridgeline.records.recipe_compression import RecipeAdapter

LAYOUT = Layout(dp=8, fsdp=8, zero=3, global_batch=16, recompute="full")


def predict(tmp_path: Path | None = None, content: object = None, **changes: object):  # type: ignore[no-untyped-def]
    measured = []
    if tmp_path is not None:
        path = tmp_path / "run.json"
        path.write_text(json.dumps(content))
        measured = [path]
    words = {"model": "Llama-3-8B", "cluster": "8xH100", "seq": 8192, "layout": LAYOUT} | changes
    return predict_training(**words, measured=measured)  # type: ignore[arg-type]


def test_what_was_assumed_is_said() -> None:
    words = " ".join(predict().assumed)
    for part in ("H100-SXM-80GB", "DGX H100", "of the bf16 peak", "published runs on Hopper",
                 "class torch"):  # fmt: skip
        assert part in words


def test_a_state_on_disk_spares_its_memory_and_costs_its_bytes_over_the_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = predict()
    moments = plain.memory.stages[0].terms["optimizer"]
    layout = msgspec.structs.replace(LAYOUT, offload="optimizer-on-disk")
    for rate in (1e9, 4e9):
        cluster = cluster_with_disk(parse_cluster("8xH100"), bytes_per_second=rate)
        found = predict(layout=layout, cluster=cluster)
        assert found.breakdown["optimizer"] == pytest.approx(2 * moments / rate)
        assert found.memory.stages[0].terms["optimizer"] < moments / 4
        assert found.memory.stages[0].terms["master"] == plain.memory.stages[0].terms["master"]
        assert "DGX-2" not in " ".join(found.assumed)
    assert "as in a DGX-2" in " ".join(predict(layout=layout).assumed)
    assert "DGX-2" not in " ".join(plain.assumed)
    with pytest.raises(InputError, match=r"hardware --probe --disk .* does that"):
        cluster_with_disk(parse_cluster("8xH100"), tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        cluster_with_disk(parse_cluster("8xH100"), tmp_path / "absent")
    rates = StorageRates(
        folder=str(tmp_path), file_bytes=1, cache="circumvented", write_bytes_per_second=8e8,
        sequential_bytes_per_second=16e8, random_bytes_per_second=1.0, random_read_bytes=1,
        random_readers=1, small_read_seconds=1.0, date="",
    )  # fmt: skip
    save_storage(rates)
    shared = cluster_with_disk(parse_cluster("8xH100"), tmp_path)
    assert shared.disk_read_bytes_per_second == pytest.approx(2e8)
    assert shared.disk_write_bytes_per_second == pytest.approx(1e8)


def test_everything_on_disk_costs_what_zero_infinity_counts_and_no_memory_of_the_device() -> None:
    plain = predict()
    shard = plain.memory.stages[0].terms["master"] / 4.0
    layout = msgspec.structs.replace(LAYOUT, offload="all-on-disk", recompute="full")
    rate, micro = 1e9, layout.num_microbatches
    found = predict(layout=layout, cluster=cluster_with_disk(parse_cluster("8xH100"), None, rate))
    # Gradients and twelve bytes of state in, these and 16-bit parameters out.
    assert found.breakdown["optimizer"] == pytest.approx((4 + 12 + 12 + 2) * shard / rate)
    loads = micro * 3 * 2 + micro * 4 + (micro - 1) * 4
    waits = sum(found.breakdown[term] for term in found.breakdown if term != "optimizer")
    assert waits == pytest.approx(loads * shard / rate, rel=0.2)
    assert found.breakdown["disk"] < loads * shard / rate
    terms = found.memory.stages[0].terms
    assert not any(terms.get(name) for name in ("weights", "gradients", "master", "optimizer"))
    fast = cluster_with_disk(parse_cluster("8xH100"), None, 1e13)
    hidden = predict(layout=layout, cluster=fast)
    assert hidden.breakdown.get("disk", 0.0) == 0.0


def test_an_architecture_without_published_runs_is_called_assumed() -> None:
    words = " ".join(predict(cluster="8xMI355X").assumed)
    assert "assumed: no published run with bf16 on CDNA 4" in words


def test_the_interval_is_wider_where_no_run_was_fitted_until_one_is_measured(
    tmp_path: Path,
) -> None:
    def width(path: Path | None = None, **changes: object) -> float:
        low, high = predict(path, {"step_seconds": 2.0}, **changes).interval
        return high / low

    adapters = Trained(adapter=RecipeAdapter(kind="lora", rank=16))
    assert width() < width(software="deepspeed") < width(software="deepspeed", trained=adapters)
    assert width() < width(trained=adapters)
    assert width(tmp_path, software="deepspeed") == pytest.approx(width(tmp_path))
    words = " ".join(predict(software="deepspeed").assumed)
    assert "class deepspeed, no run of which was fitted" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": Layout(dp=4, global_batch=4)}, "fills dp 4"),
        ({"layout": Layout(tp=8, global_batch=1), "model": "layers=4,hidden=60,heads=6,vocab=9"},
         "does not divide the 6 heads"),
        ({"layout": Layout(pp=8, vpp=8, global_batch=8)}, "more than the 32 layers"),
        ({"layout": Layout(dp=8, vpp=2, global_batch=8)}, "--pp is 1; leave it out"),
        ({"layout": Layout(dp=8, ep=2, global_batch=8)}, "has no experts"),
        ({"layout": Layout(dp=8, ep=3, global_batch=8), "model": "Mixtral-8x7B"}, "8 experts"),
        ({"layout": Layout(dp=8, precision="fp8", global_batch=8), "cluster": "8xA100"}, "no fp8"),
        ({"layout": Layout(cp=8, global_batch=1), "seq": 1001}, "--cp 8 does not divide"),
        ({"software": "megatorn"}, "did you mean megatron"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_run_is_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        predict(**changes)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_measured_step_pulls_the_prediction_towards_it(tmp_path: Path, factor: float) -> None:
    before = predict()
    seconds = before.step_seconds * factor
    after = predict(tmp_path, {"step_seconds": seconds})
    assert after.step_seconds == pytest.approx(seconds, rel=0.08)
    assert after.calibrated
    assert all(change.before != change.after for change in after.calibrated)
    assert "pace" in {change.name for change in after.calibrated}
    width = after.interval[1] / after.interval[0]
    assert width < before.interval[1] / before.interval[0]


@pytest.mark.slow
def test_the_median_step_of_a_doctor_record_is_what_was_measured(tmp_path: Path) -> None:
    seconds = predict().step_seconds * 1.2
    record = {"profile": {"step_seconds": {"p50": seconds, "mean": 9 * seconds}}, "findings": []}
    from_record = predict(tmp_path, record).step_seconds
    assert from_record == predict(tmp_path, {"step_seconds": seconds}).step_seconds


def test_a_measured_step_that_agrees_changes_nothing(tmp_path: Path) -> None:
    before = predict()
    after = predict(tmp_path, {"step_seconds": before.step_seconds})
    assert after.calibrated == []
    assert after.step_seconds == pytest.approx(before.step_seconds, rel=1e-6)


def test_a_measurement_under_another_layout_carries_over(tmp_path: Path) -> None:
    """A node that is slower than we think makes every layout slower."""
    other = {"layout": {"dp": 8, "global_batch": 64}, "step_seconds": 0.0}
    base = predict(layout=Layout(dp=8, fsdp=8, zero=3, global_batch=64, recompute="full"))
    other["step_seconds"] = base.step_seconds * 1.3
    assert predict(tmp_path, other).step_seconds > 1.1 * predict().step_seconds


def test_a_part_of_the_same_peak_and_more_power_sustains_more_of_it() -> None:
    less, more = (coefficients_for(device(name)).gemm["bf16"] for name in ("MI300X", "MI325X"))
    assert more / less == pytest.approx((1000 / 750) ** 0.5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"step_seconds": 0}, "> 0.0"),
        ({"step_seconds": True}, "got `bool`"),
        ({"seconds": 1.0}, "unknown key seconds"),
        ({"profile": {}}, "step_seconds"),
        ({"profile": []}, "step_seconds"),
        ({"step_seconds": 1.0, "layout": {"tpp": 2}}, "tpp"),
        ({"step_seconds": 1.0, "layout": []}, "got `array`"),
        ({"step_seconds": 1.0, "layout": {"tp": 3}}, "run.json: tp 3 does not divide"),
        ({"step_seconds": 1.0, "model": ["gpt2"]}, "got `array`"),
        ({"step_seconds": 1.0, "model": "no-such"}, "run.json: unknown model"),
        ({"step_seconds": 1.0, "seq": -4}, ">= 1"),
        ({"step_seconds": 1e6}, "is predicted; give seconds"),
        ([], "give one to three"),
        ([1.0], "holds float"),
        ([{"step_seconds": 1.0}] * 4, "give one to three"),
    ],
)
def test_a_bad_calibration_file_is_one_line(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        predict(tmp_path, content)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--disk-bandwidth", "2"], "go with --offload optimizer-on-disk"),
        (["--offload", "optimizer-on-disk", "--disk", ".", "--disk-bandwidth", "2"], "give one"),
        (["--offload", "optimizer-on-disk", "--disk-bandwidth", "0"], "give above 0"),
        (["--offload", "all-on-disk", "--zero", "1"], "give --zero 3"),
    ],
)
def test_a_disk_is_told_once_and_where_it_matters(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--model", "gpt2", "--device", "h100", "--global-batch", "8", "--seq", "512"]
    assert run(["predict", "training", *asked, *words]) == 2
    assert said in capsys.readouterr().err
