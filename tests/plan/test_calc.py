"""`ridgeline calc`: every formula says what it needs, and gives what its function gives."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from typing import TypeVar, get_type_hints

import pytest

from ridgeline import cost
from ridgeline.cli.main import run
from ridgeline.cost import checkpoint_interval, static_memory
from ridgeline.cost.gradient_compression import ShortestStep
from ridgeline.errors import InputError
from ridgeline.plan.calc import FORMULAS, about, arguments, calculate, measure, usage

FABRIC = ["domain_size=8", "domain_bytes_per_second=400e9", "network_bytes_per_second=50e9"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_every_formula_says_what_it_is_and_needs(formula: str) -> None:
    assert len(about(formula).split()) >= 4
    assert arguments(FORMULAS[formula])
    with pytest.raises(InputError, match="missing; ridgeline calc"):
        calculate(formula, [])
    assert usage(formula).startswith(f"ridgeline calc {formula} ")


@pytest.mark.parametrize(
    ("formula", "values", "result"),
    [
        ("ridge", ["peak_flops_per_second=989e12", "bandwidth-bytes-per-second=3.35e12"], 295.2),
        ("zero", ["num_parameters=7.5e9", "recipe=mixed adam", "stage=3", "num_ranks=64"], 1.875e9),
        ("all-reduce", ["num_ranks=8", "buffer_bytes=16e9", *FABRIC], 0.07),
        ("kv-cache", ["model=llama-7b", "seq=2048"], 1073741824),
        ("sequences", ["model=llama-3-8b", "device=h100", "seq=8192", "recent=1024"], 453),
        (
            "tree-speedup",
            ["accuracies=0.6x0.2,0.5", "num_nodes=3", "draft_seconds=1e-3", "target_seconds=20e-3"],
            2.1 * 20 / 21,
        ),
        (
            "disk-state",
            ["state_bytes=8e9", "read_bytes_per_second=4e9", "write_bytes_per_second=2e9"],
            6.0,
        ),
        ("acceptance-rate", ["accepted=2360", "rounds=1000", "num_drafts=4"], 0.8),
        ("bubble", ["num_stages=8", "num_microbatches=32"], 7 / 39),
    ],
)
def test_values_are_read_by_the_kinds_of_the_function(
    formula: str, values: list[str], result: float
) -> None:
    assert calculate(formula, values).result == pytest.approx(result, rel=1e-3)


NOT_BY_ITSELF = {
    "blended": "how two times overlap, within the formulas of serving",
    "pairs": "of a mask, within the operators of attention",
    "as_arrays": "no formula",
}


def test_every_formula_of_plain_numbers_in_the_room_of_theory_can_be_asked_for() -> None:
    left_out = set()
    for found in pkgutil.walk_packages(cost.__path__, "ridgeline.cost."):
        module = importlib.import_module(found.name)
        for name, function in vars(module).items():
            own = inspect.isfunction(function) and function.__module__ == found.name
            if not own or name.startswith("_") or ".cost.vision" in found.name:
                continue
            kinds = [kind for key, kind in get_type_hints(function).items() if key != "return"]
            if kinds and all(
                kind in (int, float, bool) or isinstance(kind, TypeVar) for kind in kinds
            ):
                left_out |= {name} - {one.__name__ for one in FORMULAS.values()}
    assert left_out == set(NOT_BY_ITSELF)


def test_several_records_are_given_by_their_first_field_and_others_by_name() -> None:
    values = [
        "matrices=4096x4096,4096x11008", "choices=fp16,powersgd:rank=2,top-k:density=0.001",
        "num_ranks=32", *FABRIC[:2], "network_bytes_per_second=1e8",
        "memory_bytes_per_second=2e12", "compute_seconds=0.1", "hidden_seconds=0.0",
    ]  # fmt: skip
    found = calculate("best-gradient-exchange", values).result
    assert isinstance(found, ShortestStep)
    assert [name for name, _ in found.all_step_seconds] == ["none", "fp16", "powersgd", "top-k"]
    assert found.scheme == "powersgd"
    values[1] = "choices=powersgd:rank=4096"
    larger = calculate("best-gradient-exchange", values).result
    assert isinstance(larger, ShortestStep)
    assert larger.step_seconds > found.step_seconds
    for bad, told in [
        ("choices=fp17", "fp17"),
        ("choices=top-k:densty=1", "densty"),
        ("choices=top-k:density=-1", "below 0"),
        ("choices=", "choices"),
    ]:
        values[1] = bad
        with pytest.raises(InputError, match=told):
            calculate("best-gradient-exchange", values)


def test_records_are_given_by_their_fields_and_devices_by_name() -> None:
    step = calculate("decode", ["model=llama-3-8b", "device=h100", "seq=2048"]).result
    assert round(step.tokens_per_second) == 219  # type: ignore[attr-defined]
    sent = calculate(
        "gradient-exchange",
        ["matrices=4096x4096,4096x1024", "scheme=powersgd", "num_ranks=16", *FABRIC,
         "memory_bytes_per_second=2e12"],
    ).result  # fmt: skip
    assert sent.sent_bytes > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["yung"], "did you mean young"),
        (["checkpoint-interval"], "did you mean daly, daly-first-order, goodput, mtbf, young?"),
        (["kv"], "did you mean kv-cache, kv-cache-per-token, kv-layouts?"),
        (["bubble", "num_stages=0", "num_microbatches=4"], "must each be 1 or more"),
        (["young", "checkpoint_seconds=inf", "mtbf_seconds=1"], "is finite"),
        (["young", "60"], "is no NAME=VALUE"),
        (["young", "speed=1"], "no argument 'speed'; ridgeline calc young"),
        (["young", "checkpoint_seconds=x", "mtbf_seconds=1"], "checkpoint_seconds is 'x'"),
        (["young", "checkpoint_seconds=0", "mtbf_seconds=1"], "must be above 0"),
        (["zero", "num_parameters=1", "recipe=x", "stage=1", "num_ranks=1"], "use one of"),
        (["zero", "num_parameters=1", "recipe=fp32 adam", "stage=4", "num_ranks=1"], "stage"),
    ],
)
def test_bad_values_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calc", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "message"), [("-1", "below 0"), ("nan", "is finite"), ("inf", "is finite")]
)
def test_no_formula_takes_a_number_below_zero_or_that_is_not_finite(
    value: str, message: str
) -> None:
    read = 0
    for formula, function in FORMULAS.items():
        known = arguments(function)
        for asked in known:
            if asked.kind is not float or asked.name == "value":
                continue
            given = {one.name: "1" for one in known if one.kind in (int, float)}
            given |= {one.name: "1,1" for one in known if "Sequence" in str(one.kind)}
            with pytest.raises(InputError) as refused:
                _asked(formula, given | {asked.name: value})
            read += message in str(refused.value)
    assert read > 100


def _asked(formula: str, given: dict[str, str]) -> object:
    return calculate(formula, [f"{name}={text}" for name, text in given.items()])


def test_the_command_prints_the_result_or_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["calc", "daly", "checkpoint_seconds=60", "mtbf_seconds=11160"]
    expected = checkpoint_interval.daly_interval_seconds(60.0, 11160.0)
    assert run(words) == 0
    assert f"18.6 min ({expected:.12g} s)" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == expected


@pytest.mark.parametrize("formula", FORMULAS)
def test_every_single_number_has_a_unit(formula: str) -> None:
    result = get_type_hints(FORMULAS[formula])["return"]
    is_number = result in {float, int, float | None} or isinstance(result, TypeVar)
    assert bool(measure(formula)) == is_number


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "ring-all-reduce num_ranks=8 buffer_bytes=1e9 bytes_per_second=2e10",
            "87.5 ms (0.0875 s)",
        ),
        ("kv-cache model=llama-7b seq=2048", "1.07 GB (1073741824 B)"),
        ("kv-cache-per-token model=llama-7b", "524 kB/token (524288 B/token)"),
        ("ridge peak_flops_per_second=200 bandwidth_bytes_per_second=4", "50.0 (50 FLOP/B)"),
        ("bubble num_stages=8 num_microbatches=32", "18 % (0.179487179487)"),
        ("amdahl share=0.5 factor=2", "1.33× (1.33333333333)"),
        ("break-even extra_startup_seconds=30 before_seconds=0.2 after_seconds=0.15", "600 steps"),
        ("decode model=llama-3-8b device=H100-SXM-80GB seq=2048 batch=64", " tokens/s"),
        ("bill num_devices=64 seconds=86400 watts=700", "3.87 GJ"),
    ],
)
def test_numbers_are_shown_with_their_units(
    words: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calc", *words.split()]) == 0
    assert shown in capsys.readouterr().out


def test_with_json_a_number_is_as_it_was_computed(capsys: pytest.CaptureFixture[str]) -> None:
    given = "ring-all-reduce num_ranks=8 buffer_bytes=1e9 bytes_per_second=2e10"
    assert run(["calc", *given.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["result"], found["measure"]) == (0.0875, "seconds")


def test_without_a_formula_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calc"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in FORMULAS)
    assert run(["calc", "--json"]) == 0
    assert [one["formula"] for one in json.loads(capsys.readouterr().out)] == list(FORMULAS)


def test_recipes_are_found_by_name() -> None:
    assert static_memory.recipe("mixed adam").total == 16


def test_it_imports_no_heavy_library() -> None:
    code = (
        "import sys\nfrom ridgeline.cli.main import run\nrun(['calc'])\n"
        "sys.exit(bool({'torch', 'plotly', 'scipy'} & set(sys.modules)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_window_of_attention_is_told_where_the_result_hangs_on_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["calc", "kv-cache", "model=mistral-7b", "seq=32768", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["assumed"]
    assert told.startswith("Mistral-7B-v0.1: 32 of 32 layers see, and keep, the last 4,096 tokens")
    assert run(["calc", "kv-cache", "model=gemma-2-9b", "seq=32768"]) == 0
    assert "21 of 42 layers" in capsys.readouterr().out
    for model, tokens in (("mistral-7b", 4096), ("llama-3-8b", 32768)):
        assert not calculate("kv-cache", [f"model={model}", f"seq={tokens}"]).assumed


def test_what_a_devices_name_left_open_is_told() -> None:
    given = ["model=llama-3-8b", "seq=2000"]
    assert not calculate("decode", [*given, "device=H100-SXM-80GB"]).assumed
    (told,) = calculate("decode", [*given, "device=H100"]).assumed
    assert told.startswith("H100 is read as H100-SXM-80GB; it could also be")
    (told,) = calculate("decode", [*given, "device=MI250X-1GCD"]).assumed
    assert told.startswith("1 of the 2 devices")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("sequences model=qwen2-7b device=MI300X seq=3 dtype=abc", "abc: not a known dtype"),
        ("rounding-noise known_bits=999999 asked_bits=3", "the numbers are too large"),
        ("amdahl-saved seconds=3 of_seconds=3", "there is no finite number for these"),
        ("needed-speedup deadline_seconds=3 stage_seconds=1 other_seconds=4", "∞: never"),
    ],
)
def test_what_has_no_finite_answer_is_one_line(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calc", *words.split()]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert says in told.err
    assert told.err.count("\n") == 1
