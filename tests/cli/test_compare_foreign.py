"""`ridgeline compare` on times that other tools wrote."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ridgeline.cli.main import run

DRAWN = random.Random(7)


def times(seconds, count=30):
    return [seconds * DRAWN.uniform(0.99, 1.01) for _ in range(count)]


def hyperfine(seconds):
    results = [
        {"command": name, "mean": seconds, "times": times(scale * seconds)}
        for name, scale in (("train.py", 1.0), ("infer.py", 0.1))
    ]
    return json.dumps({"results": results})


def pytest_benchmark(seconds):
    stats = {"mean": seconds, "rounds": 30, "data": times(seconds)}
    benchmarks = [{"name": "test_a", "fullname": "t.py::test_a", "stats": stats}]
    return json.dumps({"machine_info": {}, "benchmarks": benchmarks, "version": "5.2.0"})


def vllm(seconds):
    first = [*times(0.5 * seconds), 0.0]
    gaps = [[0.05 * seconds] * 10 for _ in first]
    errors = [""] * 30 + ["refused"]
    return json.dumps({"backend": "vllm", "model_id": "m", "completed": 30,
                       "request_throughput": 3.0, "ttfts": first, "itls": gaps,
                       "errors": errors})  # fmt: skip


def aiperf(seconds):
    def line(whole):
        latency = {"value": 1e3 * whole, "unit": "ms"}
        return {"metadata": {}, "metrics": {"request_latency": latency}, "error": None}

    failed = {"metadata": {}, "metrics": {}, "error": {"message": "refused"}}
    return "\n".join(json.dumps(one) for one in [*map(line, times(seconds)), failed])


def aiperf_streamed(seconds):
    def line(whole):
        first = {"value": 1e6 * 0.25 * whole, "unit": "us"}
        latency = {"value": whole, "unit": "sec"}
        return {"metrics": {"request_latency": latency, "time_to_first_token": first}}

    return "\n".join(json.dumps(line(one)) for one in times(seconds))


def steps_csv(seconds):
    rows = [f"{step},0.5,{1e3 * one}" for step, one in enumerate(times(seconds))]
    return "\n".join(["step,train/loss,train/step_time_ms", *rows, "30,0.4,"])


def steps_json(seconds):
    rows = [{"step": step, "iter_time": one} for step, one in enumerate(times(seconds))]
    return "\n".join(json.dumps(one) for one in [*rows, {"step": 30, "val_loss": 0.4}])


@pytest.mark.parametrize(
    ("written", "suffix", "counted"),
    [
        (hyperfine, ".json", "runs"),
        (pytest_benchmark, ".json", "rounds"),
        (vllm, ".json", "requests"),
        (vllm, ".jsonl", "requests"),
        (aiperf, ".jsonl", "requests"),
        (aiperf_streamed, ".jsonl", "requests"),
        (steps_csv, ".csv", "steps"),
        (steps_json, ".jsonl", "steps"),
    ],
)
def test_a_file_of_another_tool_is_judged_by_its_single_times(
    tmp_path: Path, capsys, written, suffix, counted
):
    for name, seconds in (("a", 1.0), ("same", 1.0), ("slow", 1.3)):
        (tmp_path / f"{name}{suffix}").write_text(written(seconds))
    a, same, slow = (str(tmp_path / f"{name}{suffix}") for name in ("a", "same", "slow"))
    assert run(["compare", a, same]) == 0
    capsys.readouterr()
    assert run(["compare", a, slow, "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "slower"
    assert answer["new"]["unit"] + "s" == counted
    assert answer["new"]["steps"] == 30, "what failed, and lines of something else, are no times"
    assert answer["slowdown"]["ratio"] == pytest.approx(1.3, rel=0.02)
    scale = 0.1 if answer["part"] == "infer.py" else 1.0
    assert answer["reference"]["step_seconds"]["p50"] == pytest.approx(scale, rel=0.02)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"machine_info": {}, "benchmarks": [{"fullname": "t", "stats": {}}]}',
         "holds no timed rounds; run it with --benchmark-save-data"),
        ("a.json", '{"completed": 9, "request_throughput": 3.0}',
         "holds no timed requests; run it with --save-detailed"),
        ("a.json", '{"results": [{"command": "x", "times": "fast"}]}', "$.results[0].times"),
        ("a.json", '{"global_step": 40, "log_history": []}', "single times of pytest-benchmark"),
        ("a.csv", "step,loss\n1,2.0\n", "no column of times among step, loss"),
        ("a.csv", "step_time,iter_time\n1,2\n", "several columns of times (step_time, iter_time)"),
        ("a.csv", "step,step_time\n1,0.1\n2,soon\n", "a.csv:3: step_time is 'soon', not a time"),
        ("a.csv", "step,step_time_avg\n1,0.1\n", "no column of times among step, step_time_avg"),
        ("a.csv", "", "no column of times among none"),
        ("a.jsonl", '{"step_time": 1}\n[2]\n', "a.jsonl:2"),
        ("a.jsonl", '{"step_time": 1}\n{"step_time": [2]}\n', "step_time is [2], not a time"),
        ("a.jsonl", '{"metrics": {"request_latency": "soon"}}\n', "request_latency"),
        ("a.jsonl", '{"metrics": {"request_latency": {"value": 7, "unit": "tokens"}}}\n',
         "7 tokens is no time"),
        ("a.json", '{"ttfts": [0.1, 0.2], "itls": [[0.1]]}', "not of as many requests"),
    ],
)  # fmt: skip
def test_a_file_without_single_times_is_one_line(tmp_path: Path, capsys, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    assert run(["compare", str(path), str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_phases_of_requests_are_told_where_their_first_tokens_are_known(tmp_path: Path, capsys):
    told = []
    for written in (aiperf, aiperf_streamed):
        path = tmp_path / f"{written.__name__}.jsonl"
        path.write_text(written(1.0))
        assert run(["compare", str(path), str(path), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)["phases"])
    unknown, (first, others) = told
    assert unknown == []
    assert first["reference_seconds"] == pytest.approx(0.25, rel=0.02)
    assert others["reference_seconds"] == pytest.approx(0.75, rel=0.02)
