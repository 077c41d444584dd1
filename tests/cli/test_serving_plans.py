"""`predict serving`, `plan serving` and `validate serving`: contracts, exit codes, pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run

PAGES = Path(__file__).parents[2] / "docs" / "reference"
PREDICT = ["predict", "serving", "--model", "Llama-3.1-8B", "--gpu", "H100", "--weights", "fp8",
           "--prompt", "1000", "--answer", "250", "--users", "32"]  # fmt: skip
PLAN = ["plan", "serving", "--model", "Llama-3.1-8B", "--rate", "40", "--ttft", "1s", "--itl",
        "30ms", "--prompt", "1000", "--answer", "250"]  # fmt: skip
TABLE = """source,model,layers,hidden,ffn,heads,kv_heads,vocab,gpu,n_gpus,tp,weight_dtype,isl,osl,\
batch_or_concurrency,metric_name,metric_value,note
lab,Llama-3.1-8B,32,4096,14336,32,8,128256,H100,1,1,fp8,1000,1000,max load,\
output_tokens_per_s_total,14000,TensorRT-LLM
lab,Llama-3.1-8B,32,4096,14336,32,8,128256,H100,1,1,bf16,1000,200,8,itl_ms,0.5,vLLM
lab,Llama-3.1-8B,32,4096,14336,32,8,128256,H101,1,1,bf16,1000,200,8,itl_ms,8,vLLM
"""


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert isinstance(whole, dict)
    return whole


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def keys_of(value: object) -> set[str]:
    """Keys of objects inside objects; lists by their first."""
    if isinstance(value, list):
        return keys_of(value[0]) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_of(one) for one in value.values()))


def test_a_validation_keeps_the_contract(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    found = document(capsys, "validate", "serving", str(table))
    assert {"rows", "by_source", "by_metric", "overall"} <= set(found)
    contract = {"row", "source", "model", "gpu", "n_gpus", "metric_name", "published", "predicted",
                "low", "high", "error", "status", "reason"}  # fmt: skip
    assert contract <= set(found["rows"][0])
    assert [row["status"] for row in found["rows"]] == ["ok", "refused", "refused"]
    assert "below the floor" in found["rows"][1]["reason"]
    assert {"median", "p90", "bias", "coverage"} <= set(found["overall"])


def test_drafts_gain_for_one_user_and_less_for_many(capsys: pytest.CaptureFixture[str]) -> None:
    drafting = ["--drafts", "4", "--acceptance", "0.7", "--draft-model", "Llama-3.2-1B"]
    alone, many = (
        document(capsys, *PREDICT[:-1], users, *drafting)["speculation"] for users in ("1", "200")
    )
    assert alone["tokens_per_step"] == pytest.approx((1 - 0.7**5) / 0.3)
    assert many["speedup"] < alone["speedup"] < alone["tokens_per_step"]
    assert many["best_num_drafts"] <= alone["best_num_drafts"]


def test_drafts_that_cost_nothing_gain_more(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*PREDICT, "--drafts", "3", "--acceptance", "0.6"]
    free = document(capsys, *asked)["speculation"]
    paid = document(capsys, *asked, "--draft-model", "Llama-3.2-1B")["speculation"]
    assert free["speedup"] > paid["speedup"]
    assert free["tokens_per_step"] == paid["tokens_per_step"]


def test_heads_guess_a_tree_of_which_the_best_chain_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = document(capsys, *PREDICT, "--draft-tree", "3", "--accuracies", "0.6x0.2,0.5x0.1")[
        "speculation"
    ]
    assert one["tokens_per_step"] == pytest.approx(1 + 0.6 + 0.3 + 0.2)
    assert (one["num_drafts"], one["tree_depth"]) == (3, 2)
    tree, chain = (
        document(capsys, *PREDICT, *words)["speculation"]
        for words in (
            ["--draft-tree", "2", "--accuracies", "0.6,0.6"],
            ["--drafts", "2", "--acceptance", "0.6"],
        )
    )
    assert tree["speedup"] == pytest.approx(chain["speedup"])
    assert tree["tokens_per_step"] == pytest.approx(chain["tokens_per_step"])


def test_kept_tokens_bound_the_cache_and_leave_room_for_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = [*PREDICT[:6], "--prompt", "8000", "--answer", "250"]
    kept = ["--kv-recent", "1020", "--kv-first", "4"]
    whole, some = document(capsys, *long), document(capsys, *long, *kept)
    assert some["most_running"] == pytest.approx(whole["most_running"] * 8250 / 1024, rel=0.02)
    assert some["cache_bytes_per_token"] == whole["cache_bytes_per_token"]
    alone = [document(capsys, *long, "--users", "1", *more) for more in ([], kept)]
    read = [one["breakdown"]["cache"] for one in alone]
    assert read[1] == pytest.approx(read[0] * 1024 / 8125)
    # A prompt takes more steps, of 256 tokens each.
    assert alone[1]["ttft_seconds"]["value"] > alone[0]["ttft_seconds"]["value"]
    assert any("last 1020 and the first 4" in line for line in some["assumed"])
    longer = document(capsys, *long[:-4], "--prompt", "16000", "--answer", "250", *kept)
    assert longer["most_running"] == some["most_running"]


@pytest.mark.parametrize(
    "guesses",
    [
        ["--drafts", "4", "--acceptance", "0.7"],
        ["--draft-tree", "3", "--accuracies", "0.8x0.1,0.7x0.1", "--draft-cost", "0.02"],
    ],
)
def test_a_plan_is_sized_for_guesses_and_says_what_none_would_buy(
    capsys: pytest.CaptureFixture[str], guesses: list[str]
) -> None:
    asked = ["plan", "serving", "--model", "Llama-3.1-8B", "--rate", "40", "--gpu", "H100",
             "--weights", "bf16", "--itl"]  # fmt: skip
    plain, found = document(capsys, *asked, "10ms"), document(capsys, *asked, "10ms", *guesses)
    assert found["best"]["num_gpus"] < plain["best"]["num_gpus"]
    without = next(one for one in found["changes"] if one["what"] == "no guesses")
    assert without["usd_per_hour"] == plain["best"]["usd_per_hour"]


def test_guesses_that_seldom_hold_cost_a_plan_matmuls(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "serving", "--model", "Llama-3.1-8B", "--rate", "40", "--gpu", "H100",
             "--weights", "bf16", "--itl", "80ms"]  # fmt: skip
    plain = document(capsys, *asked)["best"]
    found = document(capsys, *asked, "--drafts", "8", "--acceptance", "0.2")["best"]
    assert found["num_gpus"] > plain["num_gpus"] or found["headroom"] < plain["headroom"]


@pytest.mark.parametrize("guesses", [[], ["--drafts", "4"]])
def test_a_plans_time_per_token_is_what_the_simulated_scheduler_gives(
    capsys: pytest.CaptureFixture[str], guesses: list[str]
) -> None:
    load = ["--model", "Llama-3.1-8B", "--rate", "10", "--gpu", "H100", *guesses]
    planned = document(capsys, "plan", "serving", *load, "--weights", "bf16")["best"]
    assert planned["replicas"] == 1
    lengths = ["--input-tokens", "1024", "--output-tokens", "256", "--requests", "300"]
    lengths += ["--max-tokens-per-step", "8192", "--no-interval"]
    played = document(capsys, "simulate", "serving", *load, *lengths)
    wanted = played["tpot_seconds"]["mean"]
    assert planned["estimate"]["tpot_seconds"]["value"] == pytest.approx(wanted, rel=0.15)


def test_percentiles_of_a_plan_with_guesses_are_of_steps_that_check_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["plan", "serving", "--model", "Llama-3.1-8B", "--rate", "8", "--gpu", "H100",
             "--weights", "bf16", "--prompt", "200", "--answer", "24",
             "--itl-p99", "200ms"]  # fmt: skip
    plain, dear = (
        document(capsys, *asked, *more)["best"]["tail"]["itl_p99_seconds"]
        for more in ([], ["--drafts", "4", "--draft-cost", "0.5"])
    )
    assert dear > 1.5 * plain
    assert run([*asked[:-2], "--drafts", "4", "--draft-tree", "3", "--accuracies", "0.5"]) == 2
    assert "--drafts 4 is of a chain" in capsys.readouterr().err


def test_a_plan_with_kept_tokens_buys_less_and_tells_what_a_tree_gains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = ["plan", "serving", "--model", "Llama-3.1-8B", "--rate", "40", "--itl", "30ms",
            "--prompt", "8000", "--answer", "250", "--gpu", "H100"]  # fmt: skip
    tree = ["--draft-tree", "3", "--accuracies", "0.6x0.2,0.5x0.1"]
    whole = document(capsys, *long)["best"]
    some = document(capsys, *long, "--kv-recent", "1020", *tree)["best"]
    assert some["num_gpus"] < whole["num_gpus"]
    assert some["estimate"]["speculation"]["tokens_per_step"] == pytest.approx(2.1)
    assert run([*long, *tree]) == 0
    assert "planned with 3 guesses a step, in a tree 2 deep" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("calibration", ["unseen", "shipped", "none"])
def test_calibrations_have_names(
    capsys: pytest.CaptureFixture[str], table: Path, calibration: str
) -> None:
    words = ["validate", "serving", str(table), "--calibration", calibration]
    assert document(capsys, *words)["calibration"] == calibration


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize(
    ("page", "words"), [("predict-serving.md", PREDICT), ("plan-serving.md", PLAN)]
)
def test_every_key_is_in_the_reference(
    capsys: pytest.CaptureFixture[str], page: str, words: list[str]
) -> None:
    text = (PAGES / page).read_text() + (PAGES / "predict-serving.md").read_text()
    found = document(capsys, *words)
    devices = set(found.get("why_not", {}))
    assert sorted(key for key in keys_of(found) - devices if f"`{key}`" not in text) == []


def test_every_key_of_a_validation_is_in_the_reference(
    capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    text = (PAGES / "validate-serving.md").read_text()
    found = document(capsys, "validate", "serving", str(table))
    names = set(found["by_source"]) | set(found["by_metric"])
    assert sorted(key for key in keys_of(found) - names if f"`{key}`" not in text) == []


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (PREDICT, ("time to first token", "80 % interval", "reading weights", "assumed")),
        (PLAN, ("replicas", "80 % interval", "What would change the answer", "bound by")),
    ],
)
def test_a_person_reads_the_answer(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: tuple[str, ...]
) -> None:
    assert run(words) == 0
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    for word in expected:
        assert word in out


def test_a_person_reads_the_error_by_metric(
    capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    assert run(["validate", "serving", str(table)]) == 0
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    for word in ("throughput, dense", "2 refused", "below the floor"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*PREDICT, "--rate", "3"], "not both"),
        ([*PREDICT, "--engine", "warp"], "unknown engine class"),
        ([*PREDICT, "--weights", "int3"], "int3"),
        ([*PREDICT, "--tp", "3"], "tp 3"),
        ([*PREDICT, "--drafts", "4"], "both --drafts and --acceptance"),
        ([*PREDICT, "--drafts", "4", "--acceptance", "1.4"], "between 0 and 1"),
        ([*PREDICT, "--draft-tree", "4"], "say --accuracies"),
        ([*PREDICT, "--draft-tree", "64", "--accuracies", "0.5"], "1 to 63 guesses"),
        ([*PREDICT, "--draft-tree", "4", "--accuracies", "0.9x0.8"], "add up to at most 1"),
        ([*PREDICT, "--draft-tree", "4", "--accuracies", "half"], "ranks by x"),
        ([*PREDICT, "--draft-tree", "4", "--drafts", "2"], "none of the options of a chain"),
        ([*PREDICT, "--kv-recent", "0"], "--kv-recent 0: at least 1"),
        ([*PREDICT, "--kv-recent", "9", "--kv-first", "-1"], "--kv-first -1: at least 0"),
        (
            [*PREDICT[:3], "gpt-oss-20b", *PREDICT[4:6], *PREDICT[8:], "--kv-recent", "64"],
            "a window of their own",
        ),
        ([*PLAN, "--split", "--kv-recent", "64"], "not handed over"),
        ([*PLAN, "--draft-tree", "4"], "say --accuracies"),
        (
            [*PLAN, "--acceptance", "0.9"],
            "--acceptance: it is of a chain of guesses; give",
        ),
        ([*PLAN, "--draft-cost", "0.1"], "--draft-cost: nothing is guessed; give --drafts N or"),
        ([*PLAN, "--users", "3"], "either users"),
        ([*PLAN, "--itl", "soon"], "--itl soon"),
        ([*PLAN, "--ttft-p99", "soon"], "--ttft-p99 soon"),
        ([*PLAN, "--weights", "int3"], "int3"),
        ([*PLAN, "--gpu", "H101"], "H101"),
        (["validate", "serving", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert run(words) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
