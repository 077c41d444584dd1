"""What the interception sees of scripts of every kind, and that it changes nothing of theirs.

Every test runs a real script (`tests/measure/scripts`) in a process of its own that has imported
torch (`tests/warm_scripts.py`); what depends on how a script starts is in `test_cold_start.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.warm_scripts import start_plainly

from ridgeline.errors import ChildDied, InputError, ScriptError
from ridgeline.measure.live.command import resolve, script_path
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.measure.wire import Report, Session

pytestmark = pytest.mark.usefixtures("warm")
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Expected:
    """What a script's steps consist of."""

    words: tuple[str, ...]
    kind: str = "training"
    forwards: float = 1.0
    backwards: float = 1.0
    samples: int | None = None
    losses: bool = True
    checkpointing: bool | None = False
    """None: transformers was imported before anyone watched, as it never is in a cold start."""


KINDS = {
    "hand-written loop": Expected(("plain_loop.py",), samples=16),
    "gradient accumulation": Expected(("accumulation.py",), forwards=4, backwards=4, samples=32),
    "GAN with five critic steps": Expected(("gan.py",), forwards=6, backwards=6),
    "optimizers in turn": Expected(("in_turn.py",), samples=4),
    "optimizers in turn, all kept": Expected(("in_turn.py", "kept"), samples=4),
    "closure in LBFGS": Expected(("closure.py",), samples=64),
    "no optimizer": Expected(("manual_update.py",), samples=32),
    "weights moved by torch.autograd.grad": Expected(("manual_update.py", "grad"), samples=32),
    "weights moved by torch.func": Expected(("manual_update.py", "func"), samples=32, losses=False),
    "inputs moved by gradients": Expected(
        ("manual_update.py", "inputs"), kind="inference", backwards=0, samples=32, losses=False
    ),
    "gradients alone": Expected(("sampler.py",), forwards=0),
    "gradients of torch.func": Expected(("sampler.py", "func"), forwards=0, losses=False),
    "equal parts": Expected(("equal_parts.py",), samples=16),
    "inference": Expected(("inference.py",), kind="inference", backwards=0, losses=False),
    "activation checkpointing": Expected(("recompute.py",), samples=8, checkpointing=True),
    "arrays in the place of tensors": Expected(("fed_no_tensors.py", "arrays"), samples=24),
    "numbers in the place of tensors": Expected(("fed_no_tensors.py", "list"), samples=24),
    "nothing that tells of samples": Expected(("fed_no_tensors.py", "nothing"), samples=0),
    "loader workers": Expected(("loader_workers.py",), samples=8),
    "module.compile()": Expected(("compiled.py", "module"), samples=8),
    "torch.compile(model)": Expected(("compiled.py", "wrapped"), samples=8),
    "compiled step function": Expected(("compiled.py", "function"), forwards=0),
}
FRAMEWORKS = {
    "accelerate": Expected(("with_accelerate.py",), forwards=2, backwards=2, samples=8),
    "transformers.Trainer": Expected(
        ("with_trainer.py",), forwards=2, backwards=2, samples=8, checkpointing=None
    ),
    "Lightning": Expected(("with_lightning.py",), samples=8),
}


def command(*words: str) -> list[str]:
    return [str(SCRIPTS / words[0]), *words[1:]]


def measured(words: list[str], steps: int = 8) -> tuple[Report, Conductor]:
    with Conductor(words, Session()) as run:
        run.steps(10)
        return run.steps(steps, facts=True)[0], run


@pytest.mark.sweep(
    "hand-written loop",
    "gradients alone",
    "inference",
    "module.compile()",
    "arrays in the place of tensors",
)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_loop_is_seen_step_by_step(name: str) -> None:
    check_kind(KINDS[name])


@pytest.mark.sweep("transformers.Trainer")
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_frameworks_are_seen_without_a_line_of_theirs_changed(name: str) -> None:
    check_kind(FRAMEWORKS[name])


def check_kind(expected: Expected) -> None:
    report, _ = measured(command(*expected.words))
    assert report.facts is not None
    assert report.facts.kind == expected.kind
    assert {model.device for model in report.facts.models} <= {"cpu"}
    assert len(report.steps) == 8
    settings = report.facts.settings
    assert settings.forwards_per_step == expected.forwards
    assert settings.backwards_per_step == expected.backwards
    if expected.checkpointing is not None:
        assert ("recompute" in report.facts.habits) == expected.checkpointing
        assert any(model.checkpointing for model in report.facts.models) == expected.checkpointing
    if expected.samples is not None:
        assert {step.samples for step in report.steps} == {expected.samples}
    if expected.losses:
        assert len(report.losses) == 8
    for step in report.steps:
        assert step.seconds == pytest.approx(sum(step.phases.values()))
        assert min(step.phases.values()) >= 0


@pytest.mark.slow
def test_an_agent_that_acts_is_told_from_an_evaluation() -> None:
    report, _ = measured(command("acts.py"))
    assert report.facts is not None
    assert report.facts.habits["evaluation"].calls == 4
    assert report.facts.habits["no_grad_in_training"].calls == 4


def test_doctor_names_the_model_whose_forward_runs_again_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.cli.main import run

    script = tmp_path / "two_models.py"
    text = (SCRIPTS / "recompute.py").read_text()
    two = text.replace("optimizer =", "small = nn.Linear(64, 64)\noptimizer =")
    script.write_text(two.replace("model(torch.randn(8, 64))", "small(model(torch.randn(8, 64)))"))
    assert run(["doctor", "--steps", "8", "--warmup", "4", "--json", "--", str(script)]) == 0
    models = json.loads(capsys.readouterr().out)["profile"]["models"]
    assert {one["name"]: one["checkpointing"] for one in models} == {"Net": True, "Linear": False}


@pytest.mark.sweep("False-True")
@pytest.mark.parametrize(("compiled", "switch"), [(True, True), (True, False), (False, True)])
def test_compiled_code_is_taken_at_its_modules_word(compiled: bool, switch: bool) -> None:
    from torch import nn

    from ridgeline.measure.child.facts import _recomputes_in_compiled_code

    model = nn.Sequential(nn.Linear(8, 8))
    model[0].gradient_checkpointing = switch  # as transformers' layers have it
    if compiled:
        model.compile()
    assert _recomputes_in_compiled_code(model) == (compiled and switch)


def test_the_phases_of_a_closure_are_exclusive() -> None:
    report, _ = measured(command("closure.py"))
    phases = report.steps[-1].phases
    assert {"forward", "backward", "optimizer"} <= set(phases)
    assert phases["optimizer"] < report.steps[-1].seconds


def test_a_script_that_only_makes_an_optimizer_is_measured_as_inference() -> None:
    profile = measure(command("idle_optimizer.py"), MeasurementPlan(steps=10, warmup=5, window=0))[
        0
    ]
    assert profile.kind == "inference"
    assert profile.steps == 10


def test_a_script_that_never_steps_is_given_up_after_the_patience(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time, torch\ntime.sleep(600)\n")
    with (
        Conductor([str(script)], Session(), patience_seconds=3.0) as run,
        pytest.raises(ScriptError, match="did not answer for"),
    ):
        run.steps(1)


@pytest.mark.slow
def test_a_script_shorter_than_the_plan_is_measured_with_a_plan_that_fits() -> None:
    profile = measure(command("plain_loop.py", "14"), MeasurementPlan(steps=40))[0]
    assert 3 <= profile.steps < 14


def test_a_script_that_grows_slow_is_timed_no_longer_than_asked(tmp_path: Path) -> None:
    script = tmp_path / "evaluates.py"
    text = (SCRIPTS / "plain_loop.py").read_text()
    script.write_text("import time\n" + text.replace("    x = ", "    time.sleep(0.05)\n    x = "))
    with Conductor([str(script)], Session()) as run:
        assert 2 <= len(run.steps(1000, within_seconds=1.0)[0].steps) < 100
        assert len(run.steps(3)[0].steps) == 3


def test_a_script_of_five_steps_is_looked_at_in_a_run_of_its_own() -> None:
    profile = measure(command("plain_loop.py", "5"), MeasurementPlan(steps=40))[0]
    assert profile.steps >= 2
    assert profile.operators


@pytest.mark.sweep("hand-written loop")
@pytest.mark.parametrize("name", ["hand-written loop", "compiled step function", "inference"])
def test_every_instrument_runs_and_the_script_goes_on(name: str) -> None:
    with Conductor(command(*KINDS[name].words), Session()) as run:
        run.steps(10)
        operators = run.steps(3, "operators")[0]
        assert any(call.flops > 0 for call in operators.operators)
        assert operators.memory_peak_bytes > 0
        profiled = run.steps(3, "profiler")[0]
        assert sum(call.seconds for call in profiled.profiler) > 0
        assert run.steps(1000, "sampler")[0].hot_lines
        assert len(run.steps(5)[0].steps) == 5


def test_an_instruction_that_belongs_to_no_line_is_on_the_first_of_its_function(
    tmp_path: Path,
) -> None:
    """Python has such instructions, and whoever generates code makes more of them."""
    script = tmp_path / "train.py"
    text = (SCRIPTS / "plain_loop.py").read_text()
    busy = "\n\ndef busy():\n    for _ in range(1_500_000):\n        pass\n\n\n"
    busy += 'busy.__code__ = busy.__code__.replace(co_linetable=b"")\n'
    assert "    optimizer.step()\n" in text
    text = text.replace("    optimizer.step()\n", "    optimizer.step()\n    busy()\n")
    at = text.index("torch.manual_seed")
    script.write_text(text[:at] + busy + text[at:])
    with Conductor([str(script)], Session()) as run:
        run.steps(3)
        hot = [line.site for line in run.steps(30, "sampler")[0].hot_lines]
    first = 1 + text[:at].count("\n") + 2
    assert ("busy", first) in [(site.function, site.line) for site in hot]


def test_calls_that_come_from_changing_threads_are_looked_at_in_each() -> None:
    with Conductor(command("inference.py", "threads"), Session()) as run:
        run.steps(10)
        seen = run.steps(4, "operators")[0].operators
        assert sum(call.calls for call in seen if call.name == "aten::addmm") == 2 * 4
        timed = run.steps(4, "profiler")[0].profiler
        assert sum(call.calls for call in timed if call.name == "aten::addmm") >= 2 * 3
        assert run.steps(200, "sampler")[0].hot_lines


@pytest.mark.slow
def test_calls_go_on_in_another_thread_of_a_pool_while_the_first_waits_in_vain() -> None:
    with Conductor(command("inference.py", "pool"), Session()) as run:
        assert len(run.steps(40)[0].steps) == 40
        seen = run.steps(4, "operators")[0].operators
        assert sum(call.calls for call in seen if call.name == "aten::addmm") == 2 * 4


@pytest.mark.slow
def test_operators_that_are_given_functions_run_and_are_seen_from_within() -> None:
    with Conductor(command("given_functions.py"), Session()) as run:
        run.steps(2)
        calls = run.steps(2, "operators")[0].operators
    flops = {call.name: call.flops for call in calls}
    assert flops["aten::bmm"] > 0, "of the attention"
    assert flops["aten::mm"] == 2 * (2 * 256 * 256 * 16), "of the branch"


def test_operators_carry_exact_flops_and_bytes() -> None:
    with Conductor(command("plain_loop.py"), Session()) as run:
        run.steps(5)
        calls = run.steps(2, "operators")[0].operators
    first = next(c for c in calls if c.name == "aten::addmm" and "[16,32],[32,64]" in c.shapes)
    assert first.calls == 2
    assert first.flops == 2 * (2 * 16 * 32 * 64)
    assert first.bytes == 2 * 4 * (64 + 16 * 32 + 32 * 64 + 16 * 64)
    assert first.phase == "forward"


@pytest.mark.parametrize("block", ["all", "each"])
def test_under_inference_mode_products_are_counted_as_elsewhere(block: str) -> None:
    with Conductor(command("inference_mode.py", block), Session()) as run:
        run.steps(10)
        calls = run.steps(2, "operators")[0].operators
        timed = run.steps(2, "profiler")[0].profiler
    assert {call.name for call in timed} >= {"aten::convolution", "aten::addmm", "aten::bmm"}
    names = {call.name for call in calls}
    assert not names & {"aten::conv2d", "aten::linear", "aten::matmul"}
    assert "aten::frac" not in names, "what we do with an output is not the script's"
    flops = {(call.name, call.shapes): call.flops / 2 for call in calls if call.flops}
    assert sorted(flops.values()) == [
        2 * 2 * 8 * 8 * 16,  # of attention
        2 * 2 * (2 * 8 * 8 * 16),  # its other product, and the last
        2 * (2 * 8) * 64 * 16,
        2 * (2 * 8 * 8 * 8) * 3 * 9,
    ]


def test_losses_are_those_that_the_script_computes(tmp_path: Path) -> None:
    log = tmp_path / "alone.log"
    assert start_plainly(command("plain_loop.py", "12"), log, tmp_path).wait() == 0
    alone = log.read_text().strip()
    with Conductor(command("plain_loop.py", "12"), Session()) as run:
        losses = run.steps(11)[0].losses
        assert len(losses) == 12
        run.steps(1)
        assert run.output == alone
    assert float(alone.split()[-1]) == pytest.approx(losses[-1], rel=1e-6)


def test_copies_pickles_and_scripted_models_carry_nothing_of_ours() -> None:
    with Conductor(command("copies.py"), Session()) as run:
        assert run.steps(1000)[0].ended
        assert run.output.endswith("clean")


@pytest.mark.sweep("load")
@pytest.mark.parametrize("made", ["trace", "script", "load", "no"])
def test_a_torchscript_program_is_seen_with_the_line_that_made_it(made: str) -> None:
    report, _ = measured(command("torchscript.py", made))
    assert report.facts is not None
    assert [model.scripted for model in report.facts.models] == [made != "no"]
    site = report.facts.settings.torchscript_site
    lines = (SCRIPTS / "torchscript.py").read_text().splitlines()
    assert (site is None) == (made == "no")
    assert site is None or f"torch.jit.{made}" in lines[site.line - 1]


@pytest.mark.sweep("frozen", "scripted-static")
@pytest.mark.parametrize(
    "kind", ["frozen", "static", "dynamic", "scripted-static", "frozen-static", "frozen-dynamic"]
)
def test_a_model_whose_weights_are_no_parameters_steps_all_the_same(kind: str) -> None:
    report, _ = measured(command("packed_weights.py", kind))
    assert report.facts is not None
    [model] = report.facts.models
    weights, biases = 64 * 256 + 256 * 8, 256 + 8
    assert model.num_parameters == weights + biases
    assert model.parameter_bytes == weights * (4 if kind == "frozen" else 1) + biases * 4
    assert model.name == "Sequential"


@pytest.mark.slow
def test_a_model_that_is_called_alone_for_long_steps_though_a_larger_one_was_called_once() -> None:
    report, _ = measured(command("made_of_another.py"))
    assert report.facts is not None
    [student] = report.facts.models
    assert student.calls_per_step == 1
    assert student.num_parameters == 64 * 128 + 128 + 128 * 8 + 8


def test_a_stopped_script_leaves_its_checkpoints_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.pt").write_bytes(b"weeks of training")
    (tmp_path / "last.pt").write_bytes(b"more of it")
    with Conductor(command("saves.py", "5000"), Session()) as run:
        run.steps(8)
    assert (tmp_path / "best.pt").read_bytes() == b"weeks of training"
    assert (tmp_path / "last.pt").read_bytes() == b"more of it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt"]
    assert run.output == "exit handler ran", "they clean up; `except`, `finally` must not run"


def test_a_script_that_ends_by_itself_runs_its_handlers_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Conductor(command("saves.py", "12"), Session()) as run:
        assert run.steps(500)[0].ended
    assert run.output.splitlines() == ["finally ran", "exit handler ran"]
    assert not list(tmp_path.iterdir())


def test_a_failing_script_is_reported_in_its_own_words() -> None:
    with (
        pytest.raises(ScriptError, match="ValueError: the data ran dry"),
        Conductor(command("fails.py"), Session()) as run,
    ):
        run.steps(50)


def test_a_loader_that_no_name_holds_is_seen_over_its_epochs() -> None:
    report, _ = measured(command("nameless_loader.py"), steps=13)
    assert report.facts is not None
    (loader,) = report.facts.loaders
    assert (loader.batch_size, loader.num_batches, loader.dataset) == (8, 6, "TensorDataset")
    assert loader.restarts >= 2
    assert loader.site is not None
    assert loader.site.line == 12


def test_a_killed_script_is_named_with_its_signal() -> None:
    with Conductor(command("plain_loop.py", "100000000"), Session()) as run:
        run.steps(5)
        os.kill(run.hellos[0].pid, signal.SIGKILL)
        with pytest.raises(ChildDied, match="SIGKILL"):
            run.steps(5)


def test_no_process_is_left_behind() -> None:
    with Conductor(command("loader_workers.py"), Session()) as run:
        run.steps(3)
        pid = run.hellos[0].pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_frozen_script_does_not_run_on() -> None:
    with Conductor(command("plain_loop.py", "100000000"), Session()) as run:
        run.steps(5)
        stat = Path(f"/proc/{run.hellos[0].pid}/stat")
        deadline = time.monotonic() + 120
        while (state := stat.read_text().rpartition(")")[2].split()[0]) not in "Tt":
            assert time.monotonic() < deadline, f"still {state}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no script given"),
        (["missing.py"], "missing.py: no such script"),
        (["no-such-program"], "no such program or script; give a .py file"),
        (["note.ipynb"], "`jupyter nbconvert --to script note.ipynb` makes a .py file"),
        (["LEVEL=1", "python", "train.py"], "put `LEVEL=1` before ridgeline"),
        (["-m"], "needs the name of a module"),
        (["torchrun", "missing.py"], "missing.py: no such script"),
    ],
)
def test_a_command_that_cannot_start_is_one_clear_line(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message), Conductor(words, Session()):
        pass


def test_a_line_for_a_shell_is_run_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    line = f"cd {tmp_path} && {sys.executable} train.py"
    assert resolve(["sh", "-c", line])[1:] == ["-c", line]
    assert script_path(["sh", "-c", line]) is None


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("way", ["torchrun", "spawn"])
def test_every_rank_is_measured(way: str) -> None:
    script = str(SCRIPTS / "ranks.py")
    words = [script, "spawn"] if way == "spawn" else ["torchrun", "--nproc_per_node=2", script]
    with Conductor(words, Session()) as run:
        run.steps(5)
        assert [hello.rank for hello in run.hellos] == [0, 1]
        reports = run.steps(6, facts=True)
        assert [len(report.steps) for report in reports] == [6, 6]
        communication = run.steps(3, "profiler")[0].communication
    assert communication["calls"] == 1
    assert communication["bytes"] == 4 * (512 * 512 + 512)
    assert communication["exposed"] > 0


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("words", [["ring.py"], ["cut_layers.py", "fsdp"], ["cut_layers.py", "tp"]])
def test_what_python_waits_for_is_communication_and_takes_nothing_else_from_backward(
    words: list[str],
) -> None:
    doctor = ["doctor", "--steps", "8", "--json", "--", "torchrun", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline.cli.main", *doctor, *command(*words)],
        check=True,
        capture_output=True,
    )
    phases = json.loads(done.stdout)["profile"]["phases"]
    assert phases["communication"]["p50"] > 0
    assert phases["backward"]["p50"] > 0.2 * phases["forward"]["p50"]


@pytest.mark.usefixtures("warm")
def test_runs_that_are_compared_draw_the_same_also_without_a_seed() -> None:
    def losses() -> list[float]:
        with Conductor(command("draws_by_chance.py"), Session(fix_seed=True)) as run:
            return run.steps(3)[0].losses

    assert losses() == losses()


@pytest.mark.slow
def test_shifted_seeds_change_the_losses_and_equal_seeds_do_not() -> None:
    def losses(offset: int) -> list[float]:
        with Conductor(command("plain_loop.py"), Session(seed_offset=offset, fix_seed=True)) as run:
            run.steps(1)
            return run.steps(5)[0].losses

    assert losses(0) == losses(0)
    assert losses(0) != losses(7)
