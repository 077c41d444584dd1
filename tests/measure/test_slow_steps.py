"""A handful of slow steps: a partial profile within the budget, and words meanwhile."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.measure.live.assemble import RunWindows
from ridgeline.measure.live.patience import OutOfPatience, Patience
from ridgeline.measure.wire import STANDING_NAME, Report, Standpoint, StepTimes

pytestmark = pytest.mark.usefixtures("warm")
TRAINING = (
    "import time, torch\n"
    "model = torch.nn.Linear(8, 8)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
)
SLOW = str(Path(__file__).parent / "scripts" / "slow_steps.py")
FUNCTIONS = str(Path(__file__).parent / "scripts" / "functions_alone.py")


@pytest.mark.slow
def test_slow_steps_give_a_profile_of_few_within_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--budget", "12", "--json", "--", SLOW, "0", "2"]) == 0
    captured = capsys.readouterr()
    profile = json.loads(captured.out)["profile"]
    assert 1 <= profile["steps"] <= 4, "more have no room beside two of warm-up"
    assert not profile["steady"]
    assert 2.0 <= profile["step_seconds"]["p50"] < 4.0
    assert [line for line in profile["warnings"] if line.startswith("from ")]


@pytest.mark.slow
def test_where_there_is_time_for_one_more_step_its_operators_are_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--budget", "16", "--json", "--", SLOW, "0", "6"]) == 0
    captured = capsys.readouterr()
    assert "s: looking closer at the second" in captured.err
    profile = json.loads(captured.out)["profile"]
    assert (profile["steps"], profile["warmup_steps"], profile["steady"]) == (1, 0, False)
    assert profile["operator_calls"] > 5
    assert len(profile["losses"]) == 2, "each is told once"
    assert 6.0 <= profile["step_seconds"]["p50"] < 9.0


@pytest.mark.slow
def test_whoever_waits_for_the_first_step_is_told_where_the_script_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--budget", "6", "--", SLOW, "600", "0"]) == 2
    *words, last = capsys.readouterr().err.splitlines()
    assert [
        line for line in words if line.startswith("no step yet after ") and ": it is at " in line
    ]
    assert "did not answer for 6 s before its first step: it is at " in last
    assert "slow_steps.py:14 in evaluate" in last


@pytest.mark.slow
def test_whoever_computes_by_functions_alone_is_told_that_they_make_no_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--budget", "8", "--", FUNCTIONS]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "functions_alone.py:8 in " in last
    assert "no model was called by then (a step is a call of an nn.Module" in last


@pytest.mark.slow
def test_a_first_step_that_does_not_end_is_not_called_a_wait_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--budget", "6", "--", SLOW, "0", "600"]) == 2
    *words, last = capsys.readouterr().err.splitlines()
    assert [line for line in words if line.startswith("in the first step after ")]
    assert "has not ended its first step after 9 s: it is at " in last
    assert "slow_steps.py:20 in " in last
    assert "or a smaller batch" in last


ACCUMULATES = (
    "for _ in range(100):\n"
    "    time.sleep(0.5)\n"
    "    model(torch.randn(2, 8)).sum().backward()\n"
    "optimizer.step()\n"
)


@pytest.mark.slow
def test_a_step_that_accumulates_for_too_long_is_measured_by_its_backwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "accumulates.py"
    script.write_text(TRAINING + ACCUMULATES)
    assert run(["doctor", "--budget", "24", "--json", "--", str(script)]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert any("each backward ends a step" in line for line in profile["warnings"])
    assert 0.5 <= profile["step_seconds"]["p50"] < 5.0


GENERATES = (
    "model(torch.randn(2, 8)).sum().backward()\n"
    "class Slow(torch.nn.Linear):\n"
    "    def forward(self, x):\n"
    "        time.sleep(0 if torch.is_grad_enabled() else 600)\n"
    "        return super().forward(x)\n"
    "slow = Slow(8, 8)\n"
    "slow(torch.randn(2, 8)).sum().backward()\n"
    "with torch.no_grad():\n"
    "    slow(torch.randn(2, 8))\n"
)


@pytest.mark.slow
def test_a_first_step_that_evaluates_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "generates.py"
    script.write_text(TRAINING + GENERATES)
    assert run(["doctor", "--budget", "8", "--", str(script)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "it evaluates or generates, without gradients, at " in last
    assert last.endswith("give it more time with --budget, or less to evaluate")


LISTENS = (
    "import socket\n"
    "server = socket.create_server(('127.0.0.1', 0))\n"
    "while True:\n"
    "    server.accept()[0].sendall(str(model(torch.randn(1, 8))).encode())\n"
)


@pytest.mark.slow
def test_a_server_without_requests_is_told_to_send_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "serves.py"
    script.write_text(TRAINING + LISTENS)
    assert run(["doctor", "--budget", "6", "--", str(script)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "it is at serves.py:7 in <module>; it listens at 127.0.0.1:" in last.replace(
        f"{tmp_path}/", ""
    )
    assert last.endswith("where it answers requests, send it some meanwhile")


def _waiting(folder: Path, *, idle_seconds: float) -> Patience:
    told = Standpoint(
        where="serves.py:7 in <module>",
        calls=1,
        has_begun=False,
        compiles=False,
        listens="127.0.0.1:5000",
        idle_seconds=idle_seconds,
    )
    patience = Patience(["serves.py"], folder, seconds=120.0, on_progress=None)
    patience.start()
    patience.begin_wait()
    (folder / STANDING_NAME).write_bytes(msgspec.json.encode(told))
    return patience


def test_nobody_waits_two_minutes_for_a_server_that_computes_nothing(tmp_path: Path) -> None:
    when = "before its first step"
    _waiting(tmp_path, idle_seconds=20.0).check(when, stepped=False, timed=False)
    unasked = _waiting(tmp_path, idle_seconds=31.0)
    unasked.check(when, stepped=True, timed=True)
    with pytest.raises(OutOfPatience, match=r"computed nothing .* it listens at 127.0.0.1:5000"):
        unasked.check(when, stepped=False, timed=False)


def test_where_the_script_stood_in_an_earlier_wait_is_not_where_it_stands(tmp_path: Path) -> None:
    waiting = _waiting(tmp_path, idle_seconds=0.0)
    assert "serves.py:7" in waiting._place()
    waiting.begin_wait()
    assert not waiting._place()


@pytest.mark.slow
def test_a_server_that_nobody_asks_is_let_go_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "serves.py"
    script.write_text(TRAINING + LISTENS)
    assert run(["doctor", "--budget", "80", "--", str(script)]) == 2
    assert "has computed nothing for" in capsys.readouterr().err.splitlines()[-1]


COMPILES = (
    "def slow_backend(graph, inputs):\n"
    "    time.sleep(600)\n"
    "compiled = torch.compile(model, backend=slow_backend)\n"
    "compiled(torch.randn(2, 8)).sum().backward()\n"
)


@pytest.mark.slow
def test_whoever_waits_for_a_compiler_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "compiles.py"
    script.write_text(TRAINING + COMPILES)
    assert run(["doctor", "--budget", "6", "--", str(script)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "before its first step: torch.compile is at work at " in last
    assert "compiles.py:5 in slow_backend" in last


@pytest.mark.slow
def test_a_step_of_endless_closures_is_measured_closure_by_closure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = SLOW.replace("slow_steps", "one_long_step")
    assert run(["doctor", "--budget", "20", "--steps", "8", "--json", "--", script]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["kind"] == "training"
    assert profile["steps"] >= 8
    assert len(profile["losses"]) >= profile["steps"]
    assert [line for line in profile["warnings"] if "evaluates its closure for long" in line]


@pytest.mark.slow
def test_a_long_evaluation_after_the_first_step_is_not_what_a_step_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = SLOW.replace("slow_steps", "adapts_once")
    assert run(["doctor", "--budget", "20", "--json", "--", script]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["steps"] > 8
    assert profile["step_seconds"]["p50"] < 1.0
    assert profile["operator_calls"] > 5


@pytest.mark.slow
def test_where_nothing_ends_after_a_quick_first_step_that_speaks_and_the_place_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "evaluates_for_ever.py"
    script.write_text(
        TRAINING + "def evaluate():\n"
        "    with torch.no_grad():\n"
        "        while True:\n"
        "            model(torch.randn(4, 8))\n"
        "            time.sleep(0.01)\n"
        "for step in range(100):\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    evaluate()\n"
    )
    assert run(["doctor", "--budget", "15", "--", str(script)]) == 0
    told = capsys.readouterr()
    said = " ".join((told.err + told.out).split())
    assert "in a step for 5 s: it " in said
    assert "no other step ended:" in said
    assert "in evaluate" in said


@pytest.mark.slow
def test_slow_micro_batches_that_are_accumulated_are_no_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TRAINING + "for backwards in range(1, 1000):\n"
        "    model(torch.randn(4, 8)).pow(2).mean().backward()\n"
        "    time.sleep(2.2)\n"
        "    if backwards % 6 == 0:\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
    )
    assert run(["doctor", "--budget", "45", "--json", "--", str(script)]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["step_seconds"]["p50"] == pytest.approx(13.2, rel=0.2)
    assert not [line for line in profile["warnings"] if "end with each backward" in line]


@pytest.mark.slow
def test_an_evaluation_that_does_not_end_is_measured_itself_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = time.monotonic()
    script = SLOW.replace("slow_steps", "long_evaluation")
    assert run(["doctor", "--budget", "12", "--steps", "8", "--json", "--", script]) == 0
    assert time.monotonic() - started < 3 * 12  # the probe of the machine comes on top
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["kind"] == "inference"
    assert profile["steps"] >= 8
    (said,) = [line for line in profile["warnings"] if "nothing trained" in line]
    assert "long_evaluation.py:" in said


@pytest.mark.slow
def test_a_first_step_of_many_calls_is_measured_call_by_call_where_it_does_not_end_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow start takes much of the budget already: the script is not started again."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch\n"
        "open(os.environ['STARTS'], 'a').write('x')\n"
        "time.sleep(4)\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "while True:\n"
        "    loss = 0\n"
        "    for _ in range(400):\n"
        "        time.sleep(0.05)\n"
        "        loss = loss + model(torch.randn(4, 8)).pow(2).mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    fifo = tmp_path / "starts"  # what a run writes is put back; a pipe is not
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.environ["STARTS"] = str(fifo)
    try:
        assert run(["doctor", "--budget", "15", "--json", "--", str(script)]) == 0
        assert os.read(reader, 9) == b"x"
    finally:
        os.close(reader)
        del os.environ["STARTS"]
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["kind"] == "inference"
    assert profile["step_seconds"]["p50"] == pytest.approx(0.05, rel=0.5)
    (said,) = [line for line in profile["warnings"] if "no step ended" in line]
    assert "train.py:9 in <module>" in said or "train.py:10 in <module>" in said


@pytest.mark.slow
def test_a_first_step_of_many_calls_is_a_step_where_it_ends_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TRAINING + "while True:\n"
        "    loss = 0\n"
        "    for _ in range(100):\n"
        "        time.sleep(0.14)\n"
        "        loss = loss + model(torch.randn(4, 8)).pow(2).mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    assert run(["doctor", "--budget", "24", "--json", "--", str(script)]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["kind"] == "training"


@pytest.mark.slow
def test_a_first_step_that_is_under_way_when_the_budget_ends_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TRAINING + "for step in range(100):\n"
        "    loss = model(torch.randn(4, 8)).pow(2).mean()\n"
        "    time.sleep(0.3 if step else 14)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    assert run(["doctor", "--budget", "12", "--json", "--", str(script)]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["kind"] == "training"


@pytest.mark.slow
def test_a_first_step_after_which_there_is_no_time_for_another_is_all_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    slow = TRAINING.replace("torch.nn.Linear(8, 8)", "Slow(8, 8)").replace(
        "model =",
        "class Slow(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        time.sleep(12)\n"
        "        return super().forward(x)\n"
        "model =",
    )
    script.write_text(
        slow + "while True:\n"
        "    loss = model(torch.randn(4, 8)).pow(2).mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    assert run(["doctor", "--budget", "10", "--json", "--", str(script)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "undecided"
    profile = answer["profile"]
    assert profile["kind"] == "training"
    assert profile["steps"] == 1
    assert profile["step_seconds"]["p50"] == pytest.approx(12, rel=0.2)
    assert profile["samples_per_second"] == pytest.approx(4 / 12, rel=0.2)
    assert len(profile["losses"]) == 1
    assert [line for line in profile["warnings"] if "is the script's first" in line]
    assert [line for line in profile["warnings"] if "operators were not looked at" in line]


@pytest.mark.slow
def test_a_script_that_waits_for_processes_that_died_shows_why_they_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def work(queue):\n"
        "    raise KeyError('no such environment')\n"
        "if __name__ == '__main__':\n"
        "    queue = mp.Queue()\n"
        "    mp.Process(target=work, args=(queue,)).start()\n"
        "    queue.get()\n"
    )
    assert run(["doctor", "--budget", "8", "--", str(script)]) == 2
    said = capsys.readouterr().err
    assert "the last error that it printed: KeyError: 'no such environment'" in said


@pytest.mark.slow
def test_a_script_whose_only_trainer_dies_after_a_step_shows_why_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def work():\n"
        "    model = torch.nn.Linear(8, 8)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    model(torch.randn(4, 8)).mean().backward()\n"
        "    optimizer.step()\n"
        "    raise KeyError('no second batch')\n"
        "if __name__ == '__main__':\n"
        "    process = mp.get_context('fork').Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    assert run(["doctor", "--budget", "20", "--", str(script)]) == 2
    said = capsys.readouterr().err
    assert "too few to measure; the last error that it printed: KeyError" in said


@pytest.mark.slow
def test_a_step_that_outlasts_the_budget_costs_what_comes_after_it_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    text = Path(SLOW).read_text().replace("while True:", "for step in range(50):")
    text = text.replace("before, each = (float(word) for word in sys.argv[1:])", "before = 0")
    script.write_text(text.replace("time.sleep(each)", "time.sleep(1.2 if step < 2 else 600)"))
    assert run(["doctor", "--budget", "6", "--", str(script)]) == 0
    shown = capsys.readouterr().out
    assert "(from 1 step)" in shown
    assert "operators were not looked at" in " ".join(shown.split())


def test_the_last_slow_step_speaks_where_none_was_timed() -> None:
    step = StepTimes(seconds=30.0, phases={"forward": 30.0}, samples=1, tokens=0)
    windows = RunWindows(warmup_seconds=[40.0, 30.0])
    windows.slow = [[Report(steps=[], losses=[])], [Report(steps=[step], losses=[])]]
    windows.settle()
    windows.tell_how_few()
    assert windows.timed[0].steps == [step]
    assert windows.warmup_seconds == [40.0]
    assert windows.warnings[0].startswith("from 1 step:")


def _inference(folder: Path, calls: int, seconds: float) -> str:
    script = folder / "demo.py"
    script.write_text(
        "import time, torch\n"
        "class Slow(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        f"        time.sleep({seconds})\n"
        "        return super().forward(x)\n"
        "model = Slow(8, 8).eval()\n"
        "with torch.no_grad():\n"
        f"    for image in torch.randn({calls}, 4, 8):\n"
        "        model(image)\n"
    )
    return str(script)


@pytest.mark.slow
def test_calls_that_take_long_are_steps_before_there_are_eight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _inference(tmp_path, calls=20, seconds=6)
    assert run(["doctor", "--budget", "30", "--json", "--", script]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["kind"] == "inference"
    assert 6.0 <= profile["step_seconds"]["p50"] < 7.0


@pytest.mark.slow
def test_gradients_that_a_slow_step_frees_first_are_not_in_its_peak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its activations are, and they are more than weights and gradients together."""
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch\n"
        "layers = [torch.nn.Linear(512, 512) for _ in range(4)]\n"
        "acts = [torch.nn.ReLU() for _ in layers]\n"
        "model = torch.nn.Sequential(*(part for pair in zip(layers, acts) for part in pair))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "while True:\n"
        "    optimizer.zero_grad()\n"
        "    time.sleep(1.5)\n"
        "    model(torch.randn(4096, 512)).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
    )
    assert run(["doctor", "--budget", "40", "--json", "--", str(script)]) == 0
    memory = json.loads(capsys.readouterr().out)["profile"]["memory"]
    assert memory["activations_bytes"] > 8 * memory["weights_bytes"]
    assert memory["gradients_bytes"] + memory["other_bytes"] < 0.5 * memory["weights_bytes"]
