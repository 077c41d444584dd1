"""The file that remembers a probe: found again, kept apart by machine, never a traceback."""

from pathlib import Path

import msgspec
import pytest

from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import (
    Ceilings,
    cache_folder,
    cache_path,
    cached_ceilings,
    read_cache,
    save_ceilings,
)
from ridgeline.hardware.machine import this_machine

CEILINGS = Ceilings(
    device="cpu",
    device_name="Some CPU",
    matmul_flops_per_second={"fp32": 2e11, "bf16": 8e11},
    matmul_sizes={"fp32": 2048, "bf16": 2048},
    skipped={"fp16": "no fast path here: 2.5% of fp32"},
    bandwidth_bytes_per_second=4e10,
    bandwidth_by_pattern={"copy": 3e10, "triad": 4e10},
    bandwidth_by_threads={1: 2e10, 2: 4e10},
    bandwidth_buffer_bytes=2**27,
    dispatch_seconds=1e-6,
    dispatch_autograd_seconds=1.2e-6,
    dispatch_backward_seconds=2e-6,
    launch_seconds=None,
    host_to_device_pinned_bytes_per_second=None,
    host_to_device_pageable_bytes_per_second=None,
    device_to_host_pinned_bytes_per_second=None,
    device_to_host_pageable_bytes_per_second=None,
    num_threads=2,
    cpu_time_share=0.99,
    quick=False,
    probe_seconds=9.0,
    cpu="Some CPU",
    python="3.11.7",
    torch="2.13.0",
    ridgeline="0.1.0",
    date="2026-11-20T00:00:00+00:00",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ridgeline"


def test_nothing_is_cached_at_first(cache: Path) -> None:
    assert cached_ceilings() is None
    assert not cache.exists()


def test_what_is_saved_is_found_again(cache: Path) -> None:
    path = save_ceilings(CEILINGS)
    assert path.parent == cache
    assert [file.name for file in cache.iterdir()] == [path.name]
    assert cached_ceilings() == CEILINGS


def test_a_device_has_a_file_of_its_own() -> None:
    save_ceilings(CEILINGS)
    assert cached_ceilings("cuda") is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"device": "cpu"}', b"\xff\xfe"])
def test_an_unreadable_file_counts_as_absent_and_says_why(content: bytes) -> None:
    path = save_ceilings(CEILINGS)
    path.write_bytes(content)
    assert cached_ceilings() is None
    lookup = read_cache("cpu")
    assert lookup.problem is not None
    assert str(path) in lookup.problem


def test_a_key_from_another_version_counts_as_absent() -> None:
    path = save_ceilings(CEILINGS)
    path.write_bytes(path.read_bytes().replace(b'"num_threads"', b'"threads"'))
    assert cached_ceilings() is None
    assert "threads" in (read_cache("cpu").problem or "")


def test_another_machine_has_another_file() -> None:
    here = this_machine(gpus=[])
    replaced = msgspec.structs.replace(here.cpu, model="Another CPU")
    there = msgspec.structs.replace(here, cpu=replaced)
    assert cache_path("cpu", here) != cache_path("cpu", there)


def test_another_torch_has_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_path("cpu")
    monkeypatch.setattr("ridgeline.hardware.ceilings.installed", lambda _package: "9.9")
    assert cache_path("cpu") != before


def test_without_the_variable_the_home_cache_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "ridgeline"


def test_a_relative_cache_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(InputError, match="XDG_CACHE_HOME=relative: not an absolute path"):
        cache_folder()


def test_an_unknown_probe_device_is_an_error() -> None:
    with pytest.raises(InputError, match="npu: not a device to probe; use one of cpu, cuda"):
        cache_path("npu")


def test_a_probe_beside_other_work_is_marked_busy() -> None:
    assert not CEILINGS.busy
    assert msgspec.structs.replace(CEILINGS, cpu_time_share=0.5).busy
    assert not msgspec.structs.replace(CEILINGS, cpu_time_share=None).busy


def test_a_peak_is_found_by_torch_s_name_of_the_format() -> None:
    assert CEILINGS.matmul_peak("bfloat16") == 8e11
    assert CEILINGS.matmul_peak("float32") == 2e11
    assert CEILINGS.matmul_peak("complex64") is None
