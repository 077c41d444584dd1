"""`ridgeline trace counters`: Nsight Compute's tables in each form, and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
RAW = {
    "gpu__time_duration.sum": ("usecond", {"copy": "1,000.00", "gemm": "500", "small": "2"}),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": (
        "%", {"copy": "12.5", "gemm": "88", "small": "9"},
    ),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": (
        "%", {"copy": "91", "gemm": "40", "small": "11"},
    ),
    "dram__bytes_read.sum": ("Gbyte", {"copy": "1.2", "gemm": "0.1", "small": "n/a"}),
    "dram__bytes_write.sum": ("Mbyte", {"copy": "800", "gemm": "100", "small": "n/a"}),
    "sm__warps_active.avg.pct_of_peak_sustained_active": (
        "%", {"copy": "80", "gemm": "24", "small": "12"},
    ),
    "sm__maximum_warps_per_active_cycle_pct": ("%", {"copy": "100", "gemm": "25", "small": "100"}),
    STALL.format("long_scoreboard"): ("inst", {"copy": "30", "gemm": "1", "small": "6"}),
    STALL.format("not_selected"): ("inst", {"copy": "1", "gemm": "2", "small": "1"}),
    STALL.format("selected"): ("inst", {"copy": "1", "gemm": "1", "small": "1"}),
}  # fmt: skip
NOISE = "==PROF== Connected to process 7 (python3)\nepoch 1, loss 3.2\n"


def table(rows: list[list[str]]) -> str:
    return NOISE + "".join(",".join(f'"{one}"' for one in row) + "\n" for row in rows)


def raw(kernels: list[str]) -> str:
    head = ["ID", "Process ID", "Process Name", "Kernel Name", "Context", *RAW]
    units = ["", "", "", "", "", *(unit for unit, _ in RAW.values())]
    rows = [
        [str(place), "7", "python3", name, "1", *(values[name] for _, values in RAW.values())]
        for place, name in enumerate(kernels)
    ]
    return NOISE + "".join(
        ",".join(f'"{one}"' for one in row) + "\n" for row in [head, units, *rows]
    )


def details() -> str:
    head = ["ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit"]
    metrics = [
        ("GPU Speed Of Light Throughput", "Duration", "ns", "2,000"),
        ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%", "10"),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "20"),
        ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "15"),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "123.5"),
        ("Occupancy", "Achieved Occupancy", "%", "30"),
        ("Occupancy", "Theoretical Occupancy", "%", "100"),
        ("Warp State Statistics", "Stall Barrier", "inst", "5"),
        ("Warp State Statistics", "Stall Selected", "inst", "1"),
        ("SpeedOfLight", "", "", ""),  # a rule
    ]
    rows = [["0", "7", "scan", *metric] for metric in metrics]
    return table([[*head, "Metric Value"], *rows])


def asked(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["trace", "counters", str(path), "--json", *words]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["kernels"]
    return found


def test_the_raw_page_says_what_bounds_each_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(raw(["small", "copy", "gemm", "small"]))
    copy, gemm, small = asked(path, capsys)
    assert [one["name"] for one in (copy, gemm, small)] == ["copy", "gemm", "small"]
    assert [one["bound"] for one in (copy, gemm, small)] == ["memory", "compute", "latency"]
    assert copy["total_us"] == pytest.approx(1000.0)
    assert copy["dram_bytes_per_second"] == pytest.approx(2e12)
    assert (small["launches"], small["total_us"]) == (2, pytest.approx(4.0))
    assert small["dram_bytes_per_second"] is None
    assert small["waits"][0] == {"reason": "long_scoreboard", "share": 0.75}
    assert "warps wait for global or local memory (75% of their time)" in small["because"]
    assert "12 % of warps were there of 100 % that fit" in small["because"]
    assert run(["trace", "counters", str(path), "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "2.00 TB/s" in out
    assert "gemm" not in out


def test_the_details_page_is_read_and_a_word_used_twice_is_told_by_its_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(details())
    (scan,) = asked(path, capsys)
    assert (scan["total_us"], scan["memory_percent"]) == (pytest.approx(2.0), 20.0)
    assert scan["dram_bytes_per_second"] == pytest.approx(123.5e9)
    assert scan["bound"] == "latency"
    assert "wait for a barrier of their block (83% of their time)" in scan["because"]


def test_decimal_commas_of_a_locale_are_read_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(details())
    english = asked(path, capsys)
    path.write_text(details().replace("2,000", "2.000").replace("123.5", "123,5"))
    assert asked(path, capsys) == english
    path.write_text(details().replace("123.5", "123,5").replace('"20"', '"20.25"'))
    assert run(["trace", "counters", str(path)]) == 2
    assert "123,5 has a decimal comma and 20.25 a point" in capsys.readouterr().err


def test_a_summary_counts_its_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(
        '"Process ID","Kernel Name","Invocations","Metric Name","Metric Unit","Minimum","Maximum",'
        '"Average"\n'
        '"7","k","4","Duration","us","1","3","2"\n'
        '"7","k","4","Compute (SM) Throughput","%","60","80","70"\n'
        '"7","k","4","Memory Throughput","%","1","3","2"\n'
    )
    (kernel,) = asked(path, capsys)
    assert (kernel["launches"], kernel["total_us"], kernel["bound"]) == (4, 8.0, "compute")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no table of Nsight Compute"),
        ('"ID","Kernel Name","Metric Name"\n"0","k","Duration"\n', "neither Metric Value nor"),
        ('"ID","Kernel Name","x"\n', "no kernel in it"),
        ('"ID","Kernel Name","x"\n"0","k"\n', "line 2: 2 cells under 3 columns"),
        ('"ID","Kernel Name","x"\n"0","k","3"\n', "no counter in it that says what bounds"),
    ],
)
def test_what_is_no_table_of_counters_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(text)
    assert run(["trace", "counters", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert "ncu --csv" in err


def test_rows_of_metrics_may_end_before_the_columns_of_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ncu 2025 wrote them on a GB200 (SuperBench, tests/data/cublaslt_ncu.log, MIT)."""
    rules = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type")
    head, *rows = details().removeprefix(NOISE).splitlines()
    wide = ",".join((head, *(f'"{rule}"' for rule in rules)))
    *metrics, rule = [f"{row}," for row in rows]
    rule += '"SOLBottleneck","OPT","This workload is ""low"", by 50%",""'
    path = tmp_path / "counters.csv"
    path.write_text(NOISE + "\n".join([wide, *metrics, rule]) + "\n")
    (found,) = asked(path, capsys)
    path.write_text(details())
    assert asked(path, capsys) == [found]
