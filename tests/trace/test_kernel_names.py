"""Kernels are known by the names that public libraries give them.

`kernel_names.csv` holds real names, as profilers write them, with the repository whose kernels they
are: functions that stand in its sources, and names in the published traces that we share.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, kernel, read_kineto, write

from ridgeline.cli.main import run
from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.trace import kernel_names
from ridgeline.trace.kernel_names import KERNEL_CLASSES, class_of_name, on_tensor_cores

with (Path(__file__).parent / "kernel_names.csv").open(newline="") as file:
    KNOWN = [tuple(row.values()) for row in csv.DictReader(file)]
SAID = {"yes": True, "no": False, "unknown": None}


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize(("name", "kind", "tensor_cores", "repository"), KNOWN)
def test_a_kernel_of_a_public_library_is_known_by_its_name(
    name: str, kind: str, tensor_cores: str, repository: str
) -> None:
    assert KERNEL_CLASSES[class_of_name(name)] == kind, repository
    assert on_tensor_cores(name) is SAID[tensor_cores], repository


def test_words_that_a_rule_stands_for_find_what_its_regular_expression_finds() -> None:
    rules = tomllib.loads(Path(kernel_names.__file__).with_name("kernel_classes.toml").read_text())
    expressions = [name for rule in rules["rule"] for name in rule["names"]]
    texts = [name.lower() for name, *_ in KNOWN]
    assert len(expressions) > 300
    for expression in expressions:
        quick, slow = kernel_names._Names([expression]), re.compile(expression)
        differ = [one for one in texts if quick.found_in(one) != bool(slow.search(one))]
        assert not differ, (expression, differ[:3])


@pytest.mark.parametrize(
    "name",
    [
        "k" + "<" * 200_000 + ">" * 200_000,
        "_ZN" + "9" * 100_000,
        "(" * 300_000,
        "one_shot_" * 50_000,
    ],
    ids=["templates in templates", "an endless length", "brackets", "a word again and again"],
)
def test_a_name_that_nobody_wrote_is_judged_all_the_same(name: str) -> None:
    """In the time that a name takes: 400,000 letters, nested 200,000 deep, are 30 s otherwise."""
    assert KERNEL_CLASSES[class_of_name(name)] in ("other", "communication")
    on_tensor_cores(name)


def one_after_the_other(*kernels: tuple[str, float]) -> list[dict[str, Any]]:
    """Kernels that fill a stream, each launched well before it starts."""
    events, now = [], 1000.0
    for number, (name, length) in enumerate(kernels, 1):
        events.append(call(10.0 * number, 4, number))
        events.append(kernel(now, length, correlation=number, name=name))
        now += length
    return events


def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str, **kernels: Any) -> Any:
    file = write(tmp_path / "rank0.json", kernels["events"])
    assert run(["trace", *words, str(file), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_expert_parallel_kernels_in_a_namespace_of_their_own_are_communication(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fork of DeepEP under `dpsk::ep`: nothing in it is called after a collective."""
    name = "void dpsk::ep::internode::dispatch<false, 4, false, 8192, 7>(int4*, float*)"
    steps = [(name, 400.0), ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", 600.0)] * 20
    found = answer(tmp_path, capsys, "summary", events=one_after_the_other(*steps))
    (rank,) = found["ranks"]
    assert rank["communication_exposed_us"] == pytest.approx(8000)
    assert rank["compute_us"] == pytest.approx(12000)
    assert found["verdict"][0]["cause"] in {"communication-bound", "compute-bound"}
    assert "communication-bound" in [finding["cause"] for finding in found["verdict"]]


def test_tensor_cores_that_no_name_tells_of_are_unknown_and_not_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = one_after_the_other(
        ("triton_tem_fused_mm_12", 500),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", 300),
        ("volta_sgemm_128x64_nn", 200),
    )
    (rank,) = answer(tmp_path, capsys, "kernels", events=events)["ranks"]
    assert rank["tensor_core_share"] == pytest.approx(0.6)
    assert rank["tensor_core_unknown_share"] == pytest.approx(0.5)
    assert [use["tensor_cores"] for use in rank["kernels"]] == [None, True, False]
    assert run(["trace", "kernels", str(tmp_path / "rank0.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tensor cores by name, of matrix time: yes 30 %, no 20 %, unknown 50 %" in shown


def test_a_page_says_unknown_where_a_name_does_not_tell(tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.json", one_after_the_other(("triton_tem_fused_mm_12", 500)))
    page = tmp_path / "page.html"
    assert run(["trace", "report", str(file), "--html", str(page)]) == 0
    assert "unknown" in page.read_text()


def test_matmuls_whose_names_do_not_tell_are_not_counted_as_plain_fp32(tmp_path: Path) -> None:
    """Most of the matmul time is Triton's; of what is known all is fp32."""
    events = one_after_the_other(("triton_tem_fused_mm_1", 600), ("volta_sgemm_128x64_nn", 400))
    found = trace_verdict([read_kineto(write(tmp_path / "t.json", events))])
    assert "no-tensor-cores" in [finding.cause for finding in found]
    events = one_after_the_other(("triton_tem_fused_mm_1", 1000))
    found = trace_verdict([read_kineto(write(tmp_path / "u.json", events))])
    assert "no-tensor-cores" not in [finding.cause for finding in found]


def test_kernels_side_by_side_do_not_use_an_sm_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, third = {"blocks per SM": 4.0}, {"blocks per SM": 1 / 3}
    events = [
        kernel(0, 100, stream=7, name="gemm", **full),
        kernel(0, 80, stream=8, name="gemm", **full),
        kernel(100, 100, stream=7, name="gemm", **third),
        kernel(150, 50, stream=8, name="gemm", **third),
    ]
    (rank,) = answer(tmp_path, capsys, "kernels", events=events)["ranks"]
    assert rank["sm_efficiency"] == pytest.approx((100 + 50 / 3 + 50 * 2 / 3) / 200)


def test_unknown_kernels_have_a_share_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = one_after_the_other(
        ("acme::frobnicate(float*)", 300), ("acme::grok(float*)", 400), ("volta_sgemm_32x32", 300)
    )
    (rank,) = answer(tmp_path, capsys, "kernels", events=events)["ranks"]
    assert rank["unknown_share"] == pytest.approx(0.7)
    assert rank["unknown_names"] == ["acme::grok(float*)", "acme::frobnicate(float*)"]
    assert run(["trace", "kernels", str(tmp_path / "rank0.json")]) == 0
    assert "70 % in kernels of unknown class" in capsys.readouterr().out.replace("\n", " ")
