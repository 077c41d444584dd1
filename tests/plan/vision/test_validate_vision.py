"""`validate vision`: errors on published runs, what is refused, figures that must not fall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.plan.vision.validate import validate_vision

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT.parent / "shared" / "data" / "published_vision.csv.gz"
HEADER = (
    "source,url_repo_path,model,family,input_hw,batch,precision,memory_format,software,task,gpu,"
    "n_gpus,metric_name,metric_value,gmacs,params_m,activations_m,note"
)
ROW = (
    "lab,,resnet50,resnet,224x224,256,amp_fp16,channels_last,PyTorch 2.4 eager,infer,{gpu},1,"
    "img_per_s,2500,4.11,25.56,11.11,"
)


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "vision.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_a_run_is_predicted_without_its_device_and_without_its_family(tmp_path: Path) -> None:
    found = validate_vision(table(tmp_path, ROW.format(gpu="RTX 3090")))
    assert [row.left_out for row in found.rows] == ["device", "family"]
    by_device, by_family = found.rows
    assert by_device.predicted != by_family.predicted
    for row in found.rows:
        assert row.predicted is not None
        assert row.low is not None
        assert row.high is not None
        assert row.low < row.predicted < row.high
        assert 1500 < row.predicted < 4500


def test_a_person_reads_the_errors_and_by_which_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", "vision", str(table(tmp_path, ROW.format(gpu="RTX 3090")))]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("gpu throughput", "no device of", "no family of", "1 of 1 rows judged"):
        assert words in shown


def test_a_published_median_is_judged_in_place_of_a_mean(tmp_path: Path) -> None:
    row = ROW.format(gpu="RTX 3090").replace("img_per_s,2500", "latency_ms,300")
    found = validate_vision(table(tmp_path, row, f"{row}mean per query; p50=88.9ms p90=123.6ms"))
    assert {one.published for one in found.rows} == {300.0, 88.9}


def test_a_device_without_an_entry_is_refused_by_name(tmp_path: Path) -> None:
    found = validate_vision(table(tmp_path, ROW.format(gpu="Abacus 9")))
    assert found.overall.refused == 1
    assert "Abacus 9" in found.rows[0].reason


def test_layer_norms_without_a_shader_ran_on_a_host_that_nobody_names(tmp_path: Path) -> None:
    row = (
        "ncnn,,{model},,,1,fp16,contiguous,{software},infer,Vulkan GPU NVIDIA RTX3090,1,"
        "latency_ms,218.7,,,,"
    )
    found = validate_vision(
        table(
            tmp_path,
            row.format(model="vit_small_patch16_224", software="ncnn Vulkan"),
            row.format(model="resnet50", software="ncnn Vulkan"),
        )
    )
    assert found.overall.insufficient == 1
    assert "layer_norm runs on the host's processor" in found.rows[0].reason


@pytest.mark.parametrize("board", ["Jetson Nano", "RTX3090"])
def test_8_bits_under_vulkan_ran_on_the_processor_or_nobody_knows_where(
    tmp_path: Path, board: str
) -> None:
    row = (
        f"ncnn,,resnet50_int8,resnet,224x224,1,int8,contiguous,ncnn Vulkan,infer,"
        f"Vulkan GPU NVIDIA {board},1,latency_ms,160,,,,threads 4"
    )
    found = validate_vision(table(tmp_path, row))
    if board == "Jetson Nano":
        assert {(one.kind, one.software) for one in found.rows} == {("cpu latency", "ncnn")}
    else:
        assert found.overall.insufficient == 1
        assert "processor" in found.rows[0].reason


def test_recurrent_layers_are_left_out_as_published_figures_do(tmp_path: Path) -> None:
    row = ROW.format(gpu="RTX 3090").replace("resnet50,resnet", "sequencer2d_s,sequencer")
    found = validate_vision(table(tmp_path, row.replace(",4.11,", ",4.96,")))
    assert [one.status for one in found.rows] == ["ok", "ok"]


def test_another_network_of_the_same_name_is_refused(tmp_path: Path) -> None:
    row = ROW.format(gpu="RTX 3090").replace(",4.11,", ",8.22,")
    assert "not the same network" in validate_vision(table(tmp_path, row)).rows[0].reason


def test_a_pytorch_without_fused_attention_is_predicted_slower(tmp_path: Path) -> None:
    row = ROW.format(gpu="RTX 3090").replace("resnet50,resnet", "vit_base_patch16_384,deit")
    row = row.replace("224x224", "384x384").replace(",4.11,25.56,11.11,", ",,,,")
    rows = [row.replace("PyTorch 2.4", f"PyTorch {version}") for version in ("1.12", "2.4")]
    old, new = validate_vision(table(tmp_path, *rows), calibration="shipped").rows
    assert old.predicted is not None
    assert new.predicted is not None
    assert old.predicted < 0.9 * new.predicted


def test_runs_on_several_devices_are_predicted_with_what_these_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = (
        "lab,,resnet50,resnet,224x224,128,amp_fp16,channels_last,PyTorch 2.4 eager,train,"
        "A100-SXM-80GB,{count},img_per_s,2500,4.11,25.56,11.11,"
    )
    path = table(tmp_path, *(row.format(count=count) for count in (1, 2, 8)))
    assert run(["validate", "vision", str(path), "--calibration", "shipped", "--json"]) == 0
    rates = [
        one["predicted"] / one["n_gpus"] for one in json.loads(capsys.readouterr().out)["rows"]
    ]
    assert rates[0] > rates[1] > rates[2] > 0.9 * rates[0], "published ones lose 2 to 10 %"


def test_a_row_whose_own_table_doubts_its_unit_says_too_little(tmp_path: Path) -> None:
    found = validate_vision(table(tmp_path, ROW.format(gpu="RTX 3090") + "per image; check unit"))
    assert found.overall.insufficient == 1
    assert "doubts the unit" in found.rows[0].reason


def test_an_unknown_calibration_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use unseen, shipped or none"):
        validate_vision(table(tmp_path, ROW.format(gpu="RTX 3090")), calibration="best")


@pytest.mark.slow
def test_errors_on_the_published_table_are_no_larger_than_recorded() -> None:
    if not PUBLISHED.exists():
        pytest.skip(f"{PUBLISHED} is not here")
    recorded = json.loads((ROOT / "docs" / "results" / "accuracy_vision.json").read_text())
    found = validate_vision(PUBLISHED)
    for name, figures in recorded.items():
        kind, _, way = name.partition(", no ")
        errors = found.by_kind[kind][way]
        assert errors.rows >= figures["rows"], name
        assert (errors.median or 0.0) <= figures["median"] + 0.002, name
        assert (errors.p90 or 0.0) <= figures["p90"] + 0.005, name
        assert 0.75 <= (errors.coverage or 0.0) <= 0.90, name
