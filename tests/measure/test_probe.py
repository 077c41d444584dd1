"""The probe, for real but quick, and what `ceilings` does with its cache."""

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import torch

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import Ceilings, cached_ceilings, read_cache, save_ceilings
from ridgeline.measure import microbenchmarks
from ridgeline.measure import probe as probing


@pytest.fixture
def measured(probed_ceilings: Ceilings) -> Ceilings:
    return probed_ceilings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ridgeline"


def quiet(ceilings: Ceilings) -> Ceilings:
    """The same as if nobody else had used the CPU: how busy the test machine is must not matter."""
    return msgspec.structs.replace(ceilings, cpu_time_share=1.0)


def test_a_quick_probe_finds_positive_ceilings(measured: Ceilings) -> None:
    assert {"fp32", "fp32_medium", "bf16", "fp64"} <= set(measured.matmul_flops_per_second)
    rates = [
        *measured.matmul_flops_per_second.values(),
        *measured.bandwidth_by_pattern.values(),
        *measured.bandwidth_by_threads.values(),
        measured.bandwidth_bytes_per_second,
        measured.dispatch_seconds,
        measured.dispatch_autograd_seconds,
        measured.dispatch_backward_seconds,
    ]
    assert all(rate > 0 and math.isfinite(rate) for rate in rates)


def test_every_kind_of_arithmetic_is_measured_or_explained(measured: Ceilings) -> None:
    kinds = set(microbenchmarks.MATMUL_KINDS["cpu"])
    assert set(measured.matmul_flops_per_second) | set(measured.skipped) == kinds
    assert set(measured.matmul_sizes) == set(measured.matmul_flops_per_second)


def test_the_bandwidth_is_the_best_of_patterns_and_threads(measured: Ceilings) -> None:
    best = measured.bandwidth_bytes_per_second
    assert best == max(measured.bandwidth_by_threads.values())
    assert best == max(measured.bandwidth_by_pattern.values())


def test_the_buffers_are_far_beyond_the_caches_and_within_memory(measured: Ceilings) -> None:
    assert measured.bandwidth_buffer_bytes >= probing.SMALLEST_BUFFER_BYTES
    assert measured.memory_bytes is not None
    assert measured.bandwidth_buffer_bytes <= measured.memory_bytes // 16


def test_a_cpu_has_no_launches_and_no_copies(measured: Ceilings) -> None:
    assert measured.launch_seconds is None
    assert measured.host_to_device_pinned_bytes_per_second is None


def test_the_probe_leaves_torch_as_it_was() -> None:
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    state = torch.get_rng_state()
    microbenchmarks.matmul("fp32_medium", "cpu", 1, microbenchmarks.QUICK, None)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_arithmetic_that_torch_cannot_do_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise NotImplementedError("no kernel for Char\nand a long trace")

    monkeypatch.setattr(torch, "_int_mm", fail)
    result = microbenchmarks.matmul("int8", "cpu", 1, microbenchmarks.QUICK, None)
    assert result.flops_per_second == 0.0
    assert result.skipped == "no kernel for Char"


def test_arithmetic_without_a_fast_path_is_only_piloted() -> None:
    result = microbenchmarks.matmul("fp64", "cpu", 1, microbenchmarks.QUICK, 1e18)
    assert result.flops_per_second > 0.0
    assert result.side == microbenchmarks.PILOT_SIDE["cpu"]
    assert "no fast path" in (result.skipped or "")


def test_sizes_grow_until_a_call_would_take_too_long() -> None:
    effort = microbenchmarks.FULL
    slow = microbenchmarks._sides(1e9, 256, effort)
    fast = microbenchmarks._sides(1e15, 256, effort)
    assert slow == [256, 256]
    assert fast == [microbenchmarks.LAST_SIDE, microbenchmarks.LAST_SIDE // 2]


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(InputError, match="npu: not a device to probe"):
        probing.probe(device="npu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InputError, match="PyTorch sees no GPU here"):
        probing.probe(device="cuda")
    assert probing.default_device() == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_launches_and_copies() -> None:
    found = probing.probe(device="cuda", quick=True)
    assert found.launch_seconds is not None
    assert found.host_to_device_pinned_bytes_per_second is not None
    assert found.cpu_time_share is None
    assert "tf32" in found.matmul_flops_per_second


def count_probes(monkeypatch: pytest.MonkeyPatch, result: Ceilings) -> list[bool]:
    """Replace the probe by `result`; the list grows by `quick` with every call."""
    calls: list[bool] = []

    def fake(progress: object, device: str, *, quick: bool, within_seconds: float) -> Ceilings:
        calls.append(quick)
        return msgspec.structs.replace(result, quick=quick, device=device)

    monkeypatch.setattr(probing, "probe", fake)
    return calls


def test_a_second_call_reads_the_cache(measured: Ceilings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_probes(monkeypatch, quiet(measured))
    first = probing.ceilings(quick=True)
    assert probing.ceilings(quick=True) == first
    assert calls == [True]
    assert cached_ceilings() == first


def test_a_full_result_serves_quick_but_not_the_other_way_round(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_probes(monkeypatch, quiet(measured))
    probing.ceilings(quick=True)
    full = probing.ceilings()
    assert probing.ceilings(quick=True) == full
    assert calls == [True, False]


def test_a_corrupt_cache_is_reported_and_replaced(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_ceilings(measured)
    path.write_text("{")
    calls = count_probes(monkeypatch, quiet(measured))
    said: list[str] = []
    probing.ceilings(on_progress=lambda what, fraction: said.append(what), quick=True)
    assert calls == [True]
    assert str(path) in said[0]
    assert read_cache("cpu").problem is None
    assert cached_ceilings() is not None


def test_a_cache_that_cannot_be_written_is_reported_and_the_result_kept(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    cache.write_text("a file where the folder should be")
    count_probes(monkeypatch, quiet(measured))
    said: list[str] = []
    found = probing.ceilings(on_progress=lambda what, fraction: said.append(what), quick=True)
    assert found.matmul_flops_per_second == measured.matmul_flops_per_second
    assert said[-1].startswith("cannot cache the ceilings")


def test_a_busy_result_is_tried_again_and_the_better_kept(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    busy = msgspec.structs.replace(measured, cpu_time_share=0.6, date=an_hour_ago)
    save_ceilings(busy)
    worse = msgspec.structs.replace(measured, cpu_time_share=0.3)
    calls = count_probes(monkeypatch, worse)
    assert probing.ceilings(quick=True) == busy
    assert calls == [True]
    count_probes(monkeypatch, quiet(measured))
    assert not probing.ceilings(quick=True).busy
    assert cached_ceilings() == quiet(measured)


def test_a_machine_that_stays_busy_is_not_probed_for_every_command(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = msgspec.structs.replace(measured, cpu_time_share=0.6)
    calls = count_probes(monkeypatch, busy)
    monkeypatch.setattr(probing, "is_wanted", lambda: True)
    assert probing.ceilings(quick=True) == probing.ceilings(quick=True) == busy
    assert calls == [True]
    monkeypatch.setattr(probing, "is_wanted", lambda: False)
    count_probes(monkeypatch, quiet(measured))
    assert probing.ceilings(quick=True) == quiet(measured), "its cores are free again"


def test_old_ceilings_are_measured_anew(
    measured: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = datetime.now(UTC) - timedelta(days=100)
    save_ceilings(quiet(msgspec.structs.replace(measured, date=old.isoformat())))
    calls = count_probes(monkeypatch, quiet(measured))
    probing.ceilings(quick=True)
    assert calls == [True]


@pytest.mark.slow
def test_a_probe_without_time_measures_float32_alone_and_is_not_kept(
    measured: Ceilings, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hurried(*words: object, within_seconds: float, **options: object) -> Ceilings:
        assert within_seconds == 0.0
        skipped = dict.fromkeys(("bf16", "int8"), probing.NO_TIME)
        return msgspec.structs.replace(measured, skipped=skipped)

    assert probing.probe(quick=True, within_seconds=0.0).matmul_flops_per_second.keys() == {"fp32"}
    monkeypatch.setattr(probing, "probe", hurried)
    assert probing.ceilings(quick=True, within_seconds=0.0).skipped["bf16"] == probing.NO_TIME
    assert not cache.exists()


@pytest.mark.usefixtures("warm")
def test_a_script_above_its_probed_peak_gets_no_mfu_and_is_told_why(
    measured: Ceilings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "is_wanted", lambda: True)
    rates = {kind: rate / 1e4 for kind, rate in measured.matmul_flops_per_second.items()}
    save_ceilings(
        msgspec.structs.replace(
            measured,
            matmul_flops_per_second=rates,
            cpu_time_share=0.3,
            date=datetime.now(UTC).isoformat(),
        )
    )
    script = str(Path(__file__).parent / "scripts" / "leaves_memory.py")
    assert run(["doctor", "--steps", "10", "--budget", "30", "--json", "--", script, "cycle"]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["mfu"] is None
    assert "times as fast as the probed peak: the probe, which got 30% of the cores" in str(
        profile["warnings"]
    )


def test_progress_goes_from_nothing_to_done(probed: Path) -> None:
    seen = json.loads((probed / "progress.json").read_text())
    fractions = [fraction for _, fraction in seen]
    assert seen[0] == ["matmul fp32", 0.0]
    assert fractions == sorted(fractions)
    assert 0.5 < fractions[-1] <= 1.0
