"""`ridgeline kernels check` over sound kernels, over planted mistakes, and over our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.check.planting import HERE, OWN, SMALL, judge, plant_own, plant_small
from tests.warm_scripts import run_module_warm

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.kernels.check import bfloat16, conduct, trial
from ridgeline.kernels.check.hints import broken_promises
from ridgeline.kernels.check.judging import CAUSES

OWN_EXAMPLES = sorted(one.stem for one in conduct.EXAMPLES.glob("[a-z]*.py"))
SOUND = sorted(one.stem for one in (HERE / "sound").glob("[a-z]*.py"))
STRANGERS: dict[str, set[str]] = {
    "softmax_of_zeros": {"inexact"},
    "layer_norm": set(),
    "convolution": set(),
    "histogram": {"uncoalesced"},
    "largest_k": set(),
    "descriptors": set(),
    "made_by_a_function": set(),
    "libdevice": set(),
    "no_barrier": {"missing-barrier"},
    "tf32": set(),
    "written_for_cuda": set(),
    "larger_scratch": set(),
    "written_for_the_compiler": set(),
    "names_of_its_own": set(),
    "float8": set(),
}
"""Kernels as others write them → what is wrong with each."""
SEED_BY_ITS_PLACE = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(out, seed):
    tl.store(out + tl.arange(0, 32), tl.rand(seed, tl.arange(0, 32)))

def example():
    kernel[(1,)](torch.empty(32), torch.zeros(1, dtype=torch.int64))
"""
"""A kernel that hands a pointer to a function of Triton's, which asserts that it is a number."""


def checked(
    target: str, capsys: pytest.CaptureFixture[str], arch: str = "sm_90"
) -> tuple[int, dict[str, Any]]:
    code = run(["kernels", "check", target, "--arch", arch, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_have_no_finding(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(str(HERE / "sound" / f"{name}.py"), capsys)
    assert (code, found["findings"]) == (0, [])
    for one in found["launches"]:
        assert 0 < one["minimum_bytes"] <= one["loaded_bytes"] + one["stored_bytes"]
    (built,) = found["compiled"]
    assert built["error"] == ""
    assert 0 < built["occupancy"]["occupancy"] <= 1


@pytest.mark.slow
def test_a_planted_mistake_is_found(tmp_path: Path) -> None:
    (mutant,) = [one for one in SMALL if one["name"] == "add: mask is off by one"]
    file = plant_small(mutant, tmp_path)
    assert "out-of-bounds" in judge([file])[file]


def test_every_mistake_can_be_planted(tmp_path: Path) -> None:
    for at, one in enumerate(SMALL):
        plant_small(one, tmp_path / f"small-{at}")
    for kernel, those in OWN.items():
        for at, name in enumerate(those):
            plant_own(kernel, name, tmp_path / f"{kernel}-{at}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_planted_mistake_is_found(tmp_path: Path) -> None:
    planted = {plant_small(one, tmp_path / f"small-{at}"): one["name"]
               for at, one in enumerate(SMALL)}  # fmt: skip
    for kernel, those in OWN.items():
        for at, name in enumerate(those):
            file = plant_own(kernel, name, tmp_path / f"{kernel}-{at}")
            planted[file] = f"{kernel}: {name}"
    found = judge(list(planted))
    causes = set(CAUSES)
    missed = {planted[file]: what for file, what in found.items() if not causes & set(what)}
    assert missed == {}


@pytest.mark.slow
def test_a_row_that_no_warp_can_hold_spills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HERE / "sound/softmax.py").read_text()
    file = tmp_path / "softmax.py"
    file.write_text(text.replace("BLOCK=128, num_warps=4", "BLOCK=8192, num_warps=1"))
    code, found = checked(str(file), capsys)
    (built,) = found["compiled"]
    assert code == 3
    assert built["spill_instructions"] > 100
    assert built["stack_bytes"] > 0
    assert "spills" in {one["cause"] for one in found["findings"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGERS)
def test_kernels_of_strangers_are_judged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(str(HERE / "scripts" / f"{name}.py"), capsys)
    assert {one["cause"] for one in found["findings"]} == STRANGERS[name]
    assert code == (3 if STRANGERS[name] else 0)
    assert all(one["error"] == "" and one["registers"] > 0 for one in found["compiled"])
    assert all(one["roofline"]["bound"] == "memory" for one in found["compiled"])


@pytest.mark.slow
def test_scratch_may_be_larger_than_what_is_written_and_results_may_not(tmp_path: Path) -> None:
    sound = HERE / "scripts/larger_scratch.py"
    files = [sound, tmp_path / "whole.py", tmp_path / "short.py"]
    text = sound.read_text()
    files[1].write_text(text.replace("return out[: len(x)]", "return out"))
    files[2].write_text(text.replace("sum_kernel[(len(x),)]", "sum_kernel[(len(x) - 1,)]"))
    found = judge(files)
    assert found[sound] == [""]
    assert "unwritten-output" in found[files[1]]
    assert "unwritten-output" in found[files[2]]


@pytest.mark.slow
def test_every_configuration_of_an_autotuner_is_run_and_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, found = checked(str(HERE / "scripts/convolution.py"), capsys)
    assert [one["configuration"] for one in found["launches"]] == [
        "BM=32, BN=32, BK=16", "BM=16, BN=16, BK=16"
    ]  # fmt: skip
    for one, programs in zip(found["launches"], (7, 26), strict=True):
        assert one["programs"] == programs
        tile = [int(word.split("=")[1]) for word in one["configuration"].split(", ")]
        assert one["matrix_flops"] == programs * 2 * tile[0] * tile[1] * 48  # 45 deep, in 16s
        assert one["matrix_dtype"] == "fp16"
    assert {one["configuration"][-25:] for one in found["compiled"]} == {
        "num_warps=4, num_stages=3", "num_warps=2, num_stages=3"
    }  # fmt: skip
    for one in found["compiled"]:
        assert one["instructions"]["HMMA"] > 0
        assert one["bank_conflicts"]
        assert one["roofline"]["intensity_flops_per_byte"] > 0


@pytest.mark.slow
def test_a_configuration_that_gives_something_else_is_found(tmp_path: Path) -> None:
    """Whichever is run last, which alone is compared with what is expected."""
    text = (HERE / "sound/add.py").read_text()
    tuned = text.replace(
        "@triton.jit",
        "@triton.autotune([triton.Config({'BLOCK': size}) for size in (64, 128)], key=[])\n"
        "@triton.jit",
    ).replace(", BLOCK=128, num_warps=4", "")
    assert tuned.count("BLOCK=128") == 0
    found = tmp_path / "tuned.py"
    found.write_text(tuned)  # its grid is of blocks of 128
    assert "configuration-dependent" in judge([found])[found]


@pytest.mark.slow
def test_what_is_right_on_numbers_of_a_usual_size_alone_is_found(tmp_path: Path) -> None:
    text = (HERE / "sound/softmax.py").read_text()
    files = [tmp_path / f"{name}.py" for name in ("usual", "tiny")]
    files[0].write_text(text.replace("values - tl.max(values, 0)", "values"))
    # What is not drawn stays as it is, so nothing overflows.
    files[1].write_text(files[0].read_text().replace("torch.randn", "torch.rand"))
    found = judge(files)
    assert "overflow" in found[files[0]]
    assert found[files[1]] == [""]


@pytest.mark.slow
def test_what_no_usual_number_and_no_interpreter_shows_is_found() -> None:
    wanted = {
        "padding_of_zero": ["inexact"],
        "broken_promise": ["broken-hint", "uncoalesced"],
        "functions_of_amd": [""],
        "mixed_up_strides": ["layout-dependent"],
        "offsets_in_32_bits": ["narrow-offset"],
        "written_again": ["repeated-write"],
    }
    found = judge([HERE / "scripts" / f"{name}.py" for name in wanted])
    assert {file.stem: causes for file, causes in found.items()} == wanted


@pytest.mark.slow
def test_offsets_of_32_bits_are_told_and_are_findings_where_tensors_may_be_large(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(HERE / "scripts/offsets_in_32_bits.py")
    narrow = {"narrow_kernel": ["x", "y", "out"], "mixed_kernel": ["x"], "wide_kernel": []}
    code, found = checked(file, capsys)
    assert {one["kernel"]: one["narrow_offsets"] for one in found["launches"]} == narrow
    assert [(one["cause"], one["kernel"]) for one in found["findings"]] == [
        ("narrow-offset", "mixed_kernel")
    ]
    assert run(["kernels", "check", file, "--arch", "sm_90", "--large", "--json"]) == code == 3
    large = json.loads(capsys.readouterr().out)["findings"]
    assert {one["kernel"] for one in large} == {"narrow_kernel", "mixed_kernel"}


@pytest.mark.slow
def test_layouts_that_a_wrapper_refuses_or_a_kernel_is_not_told_are_no_matter(
    tmp_path: Path,
) -> None:
    text = (HERE / "scripts/mixed_up_strides.py").read_text()
    launch = "    sum_kernel[(7,)](x, y, out, x.stride(0), y.stride(0), 100, BLOCK=128)"
    assert text.count(launch) == 1
    files = [tmp_path / f"{name}.py" for name in ("refused", "untold")]
    refusal = "    assert x.is_contiguous() and y.is_contiguous()"
    files[0].write_text(text.replace(launch, f"{refusal}\n{launch}"))
    files[1].write_text(text.replace("x.stride(0), y.stride(0)", "100, 100"))
    assert judge(files) == {one: [""] for one in files}


@pytest.mark.parametrize(
    ("values", "multiples", "step", "count"),
    [
        ([48], [16], 1, 0),
        ([24], [16], 1, 1),
        ([32, 33, 34, 0, 1, 2], [16], 1, 0),  # two runs
        ([32, 33, 34, 1, 2, 3], [16], 1, 1),
        ([64, 80, 96], [16], 1, 0),
        ([4096, 4100, 4104], [16], 4, 0),  # addresses of float32 numbers
        ([[0, 1], [24, 25]], [1, 16], 1, 1),
    ],
)
def test_only_the_first_of_a_run_has_to_be_a_multiple(
    values: list[Any], multiples: list[int], step: int, count: int
) -> None:
    found = list(broken_promises(np.array(values), multiples, step, 7))
    assert sum(one.count for one in found) == count
    assert {one.line for one in found} <= {7}


@pytest.mark.slow
def test_results_of_eight_bits_may_err_by_their_rounding_alone(tmp_path: Path) -> None:
    text = (HERE / "scripts/float8.py").read_text()
    file = tmp_path / "smaller.py"
    load = "tl.load(x + places, mask=inside)"
    assert text.count(load) == 1
    file.write_text(text.replace(load, f"(0.96 * {load})"))
    assert "inexact" in judge([file])[file]


@pytest.mark.slow
def test_every_line_of_our_own_kernels_is_run_by_an_example() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.check.lines"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""


@pytest.mark.slow
def test_a_wrong_result_names_the_kernel_that_wrote_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HERE / "scripts/tf32.py").read_text()
    file = tmp_path / "tf32.py"
    file.write_text(text.replace("out, x.double() @", "out, 1.01 * x.double() @"))
    _, found = checked(str(file), capsys)
    assert [one["kernel"] for one in found["launches"]] == ["product", "scaled"]
    assert [(one["cause"], one["kernel"]) for one in found["findings"]] == [("inexact", "product")]
    assert [one["matrix_dtype"] for one in found["launches"]] == ["tf32", ""]


def test_the_documents_say_how_many_mistakes_are_planted() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/kernels.md").read_text()
    own, small = sum(len(one) for one in OWN.values()), len(SMALL)
    said = (
        f"{own + small} mistakes are planted one at a time, {own} into {len(OWN)} files of our own "
        f"kernels and {small} into {len(SOUND)} small ones"
    )
    assert said in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_EXAMPLES)
def test_our_own_kernels_have_no_finding(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "check", name, "--arch", "gfx942"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "No findings" in out
    assert "gfx942" in out


def test_the_bytes_of_a_sum_are_three_vectors_and_every_sector_is_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "subprocess", SimpleNamespace(run=run_module_warm))
    code, found = checked(str(HERE / "scripts/written_for_cuda.py"), capsys)
    assert code == 0
    (launch,) = found["launches"]
    assert launch["vector_flops"] == 2 * 8 * 128
    assert launch["divergent_warps"] == round(3 / 96, 4)  # the last block ends within a warp
    assert launch["programs"] == 8
    assert (launch["loaded_bytes"], launch["stored_bytes"]) == (8000, 4000)
    assert launch["minimum_bytes"] == 12000
    assert launch["sector_efficiency"] == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no Python file, and none of our kernels"),
        pytest.param("x = 1\n", "defines no example()", marks=pytest.mark.slow),
        pytest.param("def example():\n    pass\n", "launches no kernel", marks=pytest.mark.slow),
        pytest.param(
            "def example():\n    raise ValueError('five')\n",
            "line 2: example() fails: ValueError",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import sys\nsys.exit(0)\n",
            "line 2: importing it fails: SystemExit",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            SEED_BY_ITS_PLACE,
            "line 7: example() fails: AssertionError: assert ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import no_such_module\n",
            "line 1: importing it fails: ModuleNotFoundError",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_file_that_launches_nothing_is_refused_in_one_line(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    assert run(["kernels", "check", str(file)]) == 2
    said = capsys.readouterr().err.splitlines()
    (line,) = [one for one in said if "small sizes show as much" not in one]  # a crowded machine
    assert words in line
    assert {one.name for one in tmp_path.iterdir()} <= {"mine.py"}  # no bytecode beside it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "code", "words"),
    [
        ("out, 2.0", 2, "example() returns (Tensor, float); return pairs of tensors"),
        ("{'out': out}", 0, "no result was compared"),
        ("[(out, out.double())]", 0, "1 result compared"),
    ],
)
def test_it_says_how_many_results_were_compared(
    returned: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HERE / "sound/add.py").read_text()
    file = tmp_path / "mine.py"
    file.write_text(text[: text.rindex("    return ")] + f"    return {returned}\n")
    assert run(["kernels", "check", str(file), "--arch", "sm_90"]) == code
    said = capsys.readouterr()
    assert words in " ".join((said.out + said.err).split())


@pytest.mark.slow
def test_an_example_that_takes_long_is_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "SILENCE_SECONDS", 0.2)
    file = tmp_path / "mine.py"
    file.write_text("def example():\n    pass\n")
    assert run(["kernels", "check", str(file)]) == 2
    *said, refused = capsys.readouterr().err.splitlines()
    assert "launches no kernel" in refused
    assert said
    assert all("small sizes show as much" in line for line in said)


def test_a_release_on_which_the_trial_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "2.0.0")
    monkeypatch.setattr(trial, "wrong", lambda: ["a sum", "a cast"])
    with pytest.raises(InputError, match=r"triton 2\.0\.0: .* a sum, a cast in bfloat16 wrongly"):
        bfloat16.install()


@pytest.mark.slow
def test_the_trial_tells_an_interpreter_that_is_not_repaired() -> None:
    told = (
        "from ridgeline.kernels.check import bfloat16, trial\n"
        "print(len(trial.wrong()))\n"
        "bfloat16.TESTED = ()\n"
        "undo = bfloat16.install()\n"
        "print(len(trial.wrong()))\n"
        "undo()\n"
        "print(len(trial.wrong()))\n"
    )
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(
        [sys.executable, "-c", told], env=interpreted, capture_output=True, text=True, check=True
    )
    before, repaired, after = map(int, found.stdout.split())
    assert before == after > 3
    assert repaired == 0


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_numbers_are_rounded_to_bfloat16_as_torch_does(bits: list[int]) -> None:
    numbers = np.array(bits, np.uint32).view(np.float32)
    wanted = torch.from_numpy(numbers.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(bfloat16.decoded(bfloat16.encoded(numbers)), wanted)
