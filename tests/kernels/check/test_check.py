"""`ridgeline kernels check` over sound kernels, over planted mistakes, and over our own."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.kernels.check import bfloat16, conduct

HERE = Path(__file__).parent
OWN: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "own_mutants.toml").read_text())
KERNELS = Path(conduct.__file__).parents[1]
OWN_EXAMPLES = sorted(one.stem for one in conduct.EXAMPLES.glob("[a-z]*.py"))
SOUND = sorted(one.stem for one in (HERE / "sound").glob("[a-z]*.py"))
MUTANTS: list[dict[str, str]] = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
QUICK = {
    "add: mask is off by one": "out-of-bounds",
    "add: programs overlap": "write-write-race",
    "matmul: sums in bfloat16": "inexact",
}


def checked(
    target: str, capsys: pytest.CaptureFixture[str], arch: str = "sm_90"
) -> tuple[int, dict[str, Any]]:
    code = run(["kernels", "check", target, "--arch", arch, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def mutated(mutant: dict[str, str], folder: Path) -> Path:
    text = (HERE / "sound" / f"{mutant['file']}.py").read_text()
    assert text.count(mutant["old"]) == 1, mutant["name"]
    file = folder / f"{mutant['file']}.py"
    file.write_text(text.replace(mutant["old"], mutant["new"]))
    return file


def slow_unless(quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if quick else (pytest.mark.slow,)


def marks_of(mutant: dict[str, str]) -> tuple[pytest.MarkDecorator, ...]:
    if "missed" in mutant:
        return (pytest.mark.slow, pytest.mark.xfail(reason=mutant["missed"], strict=True))
    return slow_unless(mutant["name"] in QUICK)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=slow_unless(one == "matmul")) for one in SOUND]
)
def test_sound_kernels_have_no_finding(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(str(HERE / "sound" / f"{name}.py"), capsys)
    assert (code, found["findings"]) == (0, [])
    for one in found["launches"]:
        assert 0 < one["minimum_bytes"] <= one["loaded_bytes"] + one["stored_bytes"]
    (built,) = found["compiled"]
    assert built["error"] == ""
    assert 0 < built["occupancy"]["occupancy"] <= 1


@pytest.mark.sweep("add: mask is off by one", "add: programs overlap")
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, id=one["name"], marks=marks_of(one)) for one in MUTANTS],
)
def test_a_planted_mistake_is_found(
    mutant: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = checked(str(mutated(mutant, tmp_path)), capsys)
    assert code == 3
    causes = {one["cause"] for one in found["findings"]}
    assert causes
    assert QUICK.get(mutant["name"], next(iter(causes))) in causes
    assert all(one["summary"] and one["cure"] and one["where"] for one in found["findings"])


def planted(kernel: str, mistake: str, folder: Path) -> Path:
    """The launches of our own kernel, from a copy of its file with one mistake in it."""
    old, new = OWN[kernel][mistake]
    text = (KERNELS / "triton" / f"{kernel}.py").read_text()
    assert text.count(old) == 1, mistake
    (folder / f"planted_{kernel}.py").write_text(text.replace(old, new))
    example = (conduct.EXAMPLES / f"{kernel}.py").read_text()
    there = f"ridgeline.kernels.triton.{kernel} import"
    assert example.count(there) == 1
    file = folder / f"{kernel}.py"
    file.write_text(example.replace(there, f"planted_{kernel} import"))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "mistake"), [(kernel, one) for kernel, those in OWN.items() for one in those]
)
def test_a_mistake_planted_in_our_own_kernels_is_found(
    kernel: str, mistake: str, tmp_path: Path
) -> None:
    file = planted(kernel, mistake, tmp_path)
    assert conduct.check(str(file), []).findings != []


def test_the_documents_say_how_many_planted_mistakes_are_found() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/kernels.md").read_text()
    own, small = sum(len(one) for one in OWN.values()), len(MUTANTS)
    missed = sum("missed" in one for one in MUTANTS)
    said = (
        f"Of {own + small} mistakes planted one at a time, {own} into {len(OWN)} of our own "
        f"kernels and {small} into {len(SOUND)} small ones, {own + small - missed} are found"
    )
    assert said in " ".join(page.split())
    assert own + small >= 60
    assert missed <= 0.05 * (own + small)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=() if one == "residual_norm" else pytest.mark.slow)
        for one in OWN_EXAMPLES
    ],
)
def test_our_own_kernels_have_no_finding(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "check", name, "--arch", "gfx942"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "No findings" in out
    assert "gfx942" in out


def test_the_bytes_of_a_sum_are_three_vectors_and_every_sector_is_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, found = checked(str(HERE / "sound/add.py"), capsys)
    (launch,) = found["launches"]
    assert launch["programs"] == 8
    assert (launch["loaded_bytes"], launch["stored_bytes"]) == (8000, 4000)
    assert launch["minimum_bytes"] == 12000
    assert launch["sector_efficiency"] == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no Python file, and none of our kernels"),
        ("x = 1\n", "defines no example()"),
        ("def example():\n    pass\n", "launches no kernel"),
        ("def example():\n    raise ValueError('five is not even')\n", "five is not even"),
    ],
)
def test_a_file_that_launches_nothing_is_refused_in_one_line(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    assert run(["kernels", "check", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_a_release_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "2.0.0")
    with pytest.raises(InputError, match=r"triton 2\.0\.0: its interpreter was not tested"):
        bfloat16.install()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_numbers_are_rounded_to_bfloat16_as_torch_does(bits: list[int]) -> None:
    numbers = np.array(bits, np.uint32).view(np.float32)
    wanted = torch.from_numpy(numbers.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(bfloat16.decoded(bfloat16.encoded(numbers)), wanted)
