"""`ridgeline hardware`: the JSON contract, and that a person gets tables."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ridgeline.cli.hardware import hardware
from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import Ceilings, cached_ceilings, save_ceilings
from ridgeline.measure import probe as probing
from ridgeline.measure import storage as storage_probe

app = typer.Typer()
app.command()(hardware)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "ridgeline"


@pytest.fixture
def measured(probed_ceilings: Ceilings) -> Ceilings:
    return probed_ceilings


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def document(*arguments: str) -> dict[str, Any]:
    """What `--json` prints: one document and nothing else, or this fails."""
    whole = json.loads(run(*arguments, "--json"))
    assert isinstance(whole, dict)
    return whole


def test_the_document_has_exactly_the_promised_keys() -> None:
    whole = document()
    assert list(whole) == ["machine", "gpus", "ceilings", "storage"]
    assert set(whole["machine"]) == {"os", "cpu", "memory_bytes", "memory_limit_bytes", "notes"}
    assert set(whole["machine"]["cpu"]) == {
        "model",
        "architecture",
        "num_sockets",
        "num_physical_cores",
        "num_logical_cores",
        "num_affinity_cores",
        "cgroup_cores",
        "num_usable_cores",
        "isa",
        "caches",
    }
    assert whole["ceilings"] is None


@pytest.mark.slow
def test_cached_ceilings_are_in_the_document(measured: Ceilings) -> None:
    save_ceilings(measured)
    ceilings = document()["ceilings"]
    assert ceilings["matmul_flops_per_second"] == measured.matmul_flops_per_second
    assert set(ceilings) == set(Ceilings.__struct_fields__)


def test_list_adds_every_device_with_its_derived_figures() -> None:
    devices = document("--list")["devices"]
    assert len(devices) > 30
    by_name = {part["name"]: part for part in devices}
    h100 = by_name["H100-SXM-80GB"]
    assert h100["peak_flops_per_second"]["bf16"] == 989.4e12
    assert round(h100["ridge_flops_per_byte"]) == 295
    assert h100["peer_bandwidth_bytes_per_second"] == 450e9
    assert h100["prices"][0]["usd_per_device_hour"] > 0
    assert h100["sources"]["whitepaper"]["title"]


def test_one_device_is_found_by_the_driver_s_name() -> None:
    (part,) = document("--device", "NVIDIA A100-SXM4-80GB")["devices"]
    assert part["name"] == "A100-SXM-80GB"


def test_an_unknown_device_is_an_input_error_with_the_nearest_names() -> None:
    with pytest.raises(InputError, match="MI300X"):
        run("--device", "mi300")


def test_probe_measures_caches_and_prints_only_the_document(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probing, "probe", lambda progress, device: measured)
    monkeypatch.setattr(storage_probe, "FILE_BYTES", 2**23)
    whole = document("--probe", "--disk", str(tmp_path))
    assert whole["ceilings"]["date"] == measured.date
    assert cached_ceilings() == measured
    disk = whole["storage"]
    assert disk["folder"] == str(tmp_path.resolve())
    assert disk["file_bytes"] == 2**23
    assert disk["cache"] in {"circumvented", "emptied", "in the way"}
    assert min(value for key, value in disk.items() if "per_second" in key) > 0
    assert not list(tmp_path.glob(".ridgeline-probe-*"))
    assert document("--disk", str(tmp_path))["storage"] == disk


@pytest.mark.parametrize("words", [["--disk", "nowhere"], ["--ranks", "1"], ["--ranks", "999"]])
def test_what_cannot_be_probed_is_refused_before_anything_is_measured(words: list[str]) -> None:
    with pytest.raises(InputError, match=f"{words[0]} {words[1]}: "):
        run("--probe", *words)


def test_links_are_measured_and_not_remembered() -> None:
    with pytest.raises(InputError, match="--ranks measures: give --probe with it"):
        run("--ranks", "2")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_links_between_two_ranks_are_measured_beside_what_theory_says() -> None:
    found = document("--probe", "--ranks", "2")["link_rates"]
    (link,) = found["neighbours"]
    assert (link["source"], link["target"], found["backend"]) == (0, 1, "gloo")
    moved = 2**24 / link["bytes_per_second"] + 2 * link["latency_seconds"]
    rows = {(row["operation"], row["buffer_bytes"]): row for row in found["collectives"]}
    assert {name for name, _ in rows} == {"all-reduce", "all-gather", "all-to-all"}
    assert rows["all-reduce", 2**24]["foretold_seconds"] == pytest.approx(moved)
    assert all(row["seconds"] > 0 for row in rows.values())


def test_a_person_sees_the_machine_and_what_to_run_next() -> None:
    text = run()
    assert "This machine" in text
    assert "ridgeline hardware --probe" in text


def test_a_person_sees_the_measured_ceilings(measured: Ceilings) -> None:
    save_ceilings(measured)
    text = run()
    assert "matmul bf16" in text
    assert "operator dispatch" in text


def test_a_person_sees_a_device_with_its_sources() -> None:
    text = run("--device", "h100")
    assert "989.4 Top/s" in text
    assert "450 GB/s per direction" in text
    assert "NVIDIA H100 Tensor Core GPU Architecture" in text


def test_the_list_shows_every_device_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run("--list")
    assert "Jetson-AGX-Thor-T5000" in text
    assert "H100-SXM-80GB" in text


def test_an_unreadable_cache_is_reported_and_ignored(measured: Ceilings) -> None:
    path = save_ceilings(measured)
    path.write_text("{")
    result = CliRunner().invoke(app, ["--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["ceilings"] is None
    assert path.name in result.stderr.replace("\n", "")
