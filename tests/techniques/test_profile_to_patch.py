"""From a real profile of a script with faults to the script that a person would have written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.techniques.profiles import ceilings
from tests.techniques.rehearsal import SCRIPT
from tests.warm_scripts import start_plainly

from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.measure.wire import Applied, Session
from ridgeline.techniques import Context, options_of, technique
from ridgeline.tune.patch import write_patch
from ridgeline.tune.stack import ENTRY

pytestmark = pytest.mark.usefixtures("warm")
EXAMPLES = Path(__file__).parents[2] / "examples"
FAULTS = ("--anomaly", "--collect", "--checkpoint", "--in-place", "--threads", "1")
CURES = (
    "no-anomaly", "no-forced-gc", "no-checkpointing", "set-to-none", "fused-optimizer",
    "channels-last",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of the user's with the script in it."""
    made = tmp_path_factory.mktemp("project")
    shutil.copy(SCRIPT, made / "train.py")
    return made


@pytest.fixture(scope="module")
def profiled(folder, warm):
    """What is seen of the script with all its faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plan = MeasurementPlan(steps=8, warmup=1, window=2)
        command = ["train.py", *FAULTS, "--steps", "200"]
        (profile,) = measure(command, plan, ceilings=ceilings())
    return Context(profile=profile, ceilings=ceilings())


def results_of(folder: Path, script: str) -> list[float]:
    log = folder / f"{script}.log"
    started = start_plainly([str(folder / script), *FAULTS], log, folder)
    assert started.wait(120) == 0, log.read_text()
    return [float(number) for number in re.findall(r"\d+\.\d+", log.read_text())]


def test_the_faults_of_a_real_script_are_cured_by_a_patch_that_trains_the_same(folder, profiled):
    edits = []
    for name in CURES:
        module = technique(name)
        fits = module.applies(profiled)
        assert fits.ok, f"{name}: {fits.reason}"
        (options,) = options_of(module, profiled)
        edits += [(name, edit) for edit in module.edits(profiled, options)]
    patch = write_patch(edits, folder)
    assert not patch.unplaced
    assert {name for name, _ in patch.placed} == set(CURES)
    (text,) = patch.files.values()
    for line in (
        "torch.autograd.set_detect_anomaly(False)",
        "x = block(x)",
        "optimizer.zero_grad()",
        "lr=1e-2, fused=True)",
        "model.to(memory_format=torch.channels_last)",
    ):
        assert line in text, patch.diff
    assert "gc.collect()" not in text
    (folder / "patched.py").write_text(text)
    assert results_of(folder, "patched.py") == pytest.approx(
        results_of(folder, "train.py"), rel=1e-5
    )


@pytest.mark.slow
def test_channels_last_is_written_before_the_loop_of_an_inference_script(
    tmp_path, monkeypatch, warm
):
    shutil.copy(EXAMPLES / "infer_images.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["infer_images.py", "--model", "mobilenet", "--image", "32", "--steps", "200"]
    plan = MeasurementPlan(steps=8, warmup=1, window=2)
    (profile,) = measure(command, plan, ceilings=ceilings())
    context = Context(profile=profile, ceilings=ceilings())
    module = technique("channels-last")
    assert module.applies(context).ok
    patch = write_patch([("channels-last", one) for one in module.edits(context, {})], tmp_path)
    assert not patch.unplaced
    (text,) = patch.files.values()
    assert (
        "    model.to(memory_format=torch.channels_last)\n"
        "    for step in range(1, args.steps + 1):\n"
    ) in text


def test_autocast_and_compile_are_written_where_a_person_would(folder, profiled):
    edits = [("bf16-autocast", e) for e in technique("bf16-autocast").edits(profiled, {})]
    options = {"mode": "default", "regional": "Block"}
    edits += [("compile", edit) for edit in technique("compile").edits(profiled, options)]
    patch = write_patch(edits, folder)
    assert not patch.unplaced
    (text,) = patch.files.values()
    assert (
        '                with torch.autocast("cpu", dtype=torch.bfloat16):\n'
        "                    outputs = model(x + rank).float()\n"
        "                loss = F.cross_entropy(outputs, y)\n"
        "                (loss / args.accumulate).backward()\n"
    ) in text
    assert (
        "    for block in model.modules():\n"
        '        if type(block).__name__ == "Block":\n'
        "            block.compile()\n"
        "    optimizer = "
    ) in text


STACK = {"bf16-autocast": {}, "fused-optimizer": {}}


@pytest.mark.parametrize(
    "stack",
    [
        STACK,
        pytest.param({"compile": {"mode": "default"}, **STACK}, marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_stack_takes_effect_under_the_conductor(folder, stack):
    applied = [Applied(technique=name, options=options) for name, options in stack.items()]
    command = [str(folder / "train.py"), "--steps", "50"]
    losses = []
    for session in (Session(), Session(stack=applied)):
        with Conductor(command, session, entry=ENTRY) as run:
            (report,) = run.steps(8, facts=True)
        losses.append(report.losses)
    assert set(report.applied) == set(stack)
    assert report.facts is not None
    assert report.facts.models[0].compiled == ("compile" in stack)
    assert report.facts.optimizers[0].fused
    assert losses[1] == pytest.approx(losses[0], rel=3e-2)
