"""Channels-last: volumes, and code that flattens by `.view` what needs a copy then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.techniques.profiles import ceilings, context
from tests.warm_scripts import start_plainly

from ridgeline.measure.child.points import Points
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.measure.wire import Applied, Session
from ridgeline.records import Site
from ridgeline.techniques import Context, technique
from ridgeline.tune.patch import write_patch
from ridgeline.tune.stack import ENTRY

SCRIPT = """import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.out = nn.Linear(8 * 6 * 6, 10)

    def forward(self, x):
        x = x.view(-1, 3, 8, 8)
        x = self.conv(x).relu()
        flat, twice = x.view(x.size(0), -1), x.view(-1).view(1, -1)
        return self.out(flat) + twice.mean(), x.view(torch.int32)


model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    loss = model(torch.randn(4, 3, 8, 8))[0].pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}")
"""
FLATTENING_LINE = 16
VOLUMES = """import torch
from torch import nn

model = nn.Sequential(nn.Conv3d(4, 8, 3), nn.Conv3d(8, 8, 3), nn.Flatten(), nn.Linear(512, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    loss = model(torch.randn(2, 4, 8, 8, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_what_has_no_view_is_reshaped_and_nothing_else_is(compiled, tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.py"
    path.write_text(SCRIPT.partition("model = ")[0])
    names: dict = {"__name__": "model"}
    exec(compile(path.read_text(), str(path), "exec"), names)  # noqa: S102
    model, images = names["Encoder"](), torch.randn(4, 3, 8, 8)
    wanted = model(images)
    points = Points()
    undo = technique("channels-last").apply(points, {})
    try:
        points.on_model[0](model)
        run = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        answers = run(images)
    finally:
        undo()
    assert torch.equal(answers[1], wanted[1])  # as integers, which a reshape would refuse
    torch.testing.assert_close(answers[0], wanted[0])
    (site,) = points.places["channels-last"]
    assert (Path(site.file).name, site.line) == ("model.py", FLATTENING_LINE)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        model.to(memory_format=torch.channels_last)(images)


@pytest.mark.slow
def test_the_patch_reshapes_the_lines_that_failed_in_the_run(tmp_path, monkeypatch, warm):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    stack = [Applied(technique="channels-last")]
    with Conductor(["train.py"], Session(stack=stack), entry=ENTRY) as run:
        (report,) = run.steps(4)
    places = {name: tuple(sites) for name, sites in report.places.items()}
    assert [site.line for site in places["channels-last"]] == [FLATTENING_LINE]
    made_at = Site(file="train.py", line=21)
    seen = replace(context(optimizer={"site": made_at}), changed_at=places)
    edits = technique("channels-last").edits(seen, {})
    patch = write_patch([("channels-last", edit) for edit in edits], tmp_path)
    assert not patch.unplaced
    (text,) = patch.files.values()
    assert "flat, twice = x.reshape(x.size(0), -1), x.reshape(-1).reshape(1, -1)" in text
    assert "x = x.view(-1, 3, 8, 8)" in text
    assert "x.view(torch.int32)" in text
    (tmp_path / "patched.py").write_text(text)
    for name in ("train.py", "patched.py"):
        assert start_plainly([name], tmp_path / f"{name}.log", tmp_path).wait(120) == 0
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("train.py", "patched.py")]
    assert float(logs[0]) == pytest.approx(float(logs[1]), rel=1e-3)


def test_volumes_are_seen_channels_first_and_converted_in_a_format_of_their_own(
    tmp_path, monkeypatch, warm
):
    (tmp_path / "train.py").write_text(VOLUMES)
    monkeypatch.chdir(tmp_path)
    plan = MeasurementPlan(steps=4, warmup=1, window=2)
    (profile,) = measure(["train.py"], plan, ceilings=ceilings())
    assert profile.models[0].convolves == [3]
    assert profile.habit("channels_first_convolution").calls == 2
    seen = Context(profile=profile, ceilings=ceilings())
    assert technique("channels-last").applies(seen).ok
    edits = technique("channels-last").edits(seen, {})
    patch = write_patch([("channels-last", edit) for edit in edits], tmp_path)
    (text,) = patch.files.values()
    assert "model.to(memory_format=torch.channels_last_3d)\noptimizer = " in text
    (tmp_path / "train.py").write_text(text)
    (again,) = measure(["train.py"], plan, ceilings=ceilings())
    assert again.models[0].channels_last
    assert again.habit("channels_first_convolution").calls == 1  # over the batch as it comes


def test_a_model_of_images_and_volumes_is_left_as_it_is():
    from torch import nn

    points = Points()
    undo = technique("channels-last").apply(points, {})
    model = nn.ModuleList([nn.Conv2d(4, 4, 3), nn.Conv3d(4, 4, 3)])
    points.on_model[0](model)
    undo()
    assert points.refused["channels-last"].startswith("it convolves images and volumes")
    assert all(p.is_contiguous() for p in model.parameters())
