"""Every cure on pipelines that it fits: it applies, changes what it says, keeps the results."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.realtime.cures.road import Task, cameras, preprocess, three_tasks
from torch import nn

from ridgeline.errors import InputError
from ridgeline.realtime.cures import all_cures, cure
from ridgeline.realtime.declared import declare
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.recording import Recording, Replay, record, replay
from ridgeline.realtime.results import PipelineResults, check_within, plain_result
from ridgeline.realtime.rewriting.observe import ObservedPipeline, observe
from ridgeline.realtime.rewriting.preprocessing import understand

FRAMES, PRIME = 24, 12

Make = Callable[[], Pipeline]


@functools.cache
def recorded() -> Recording:
    """What the cameras saw, the same for all."""
    return record(three_tasks(), FRAMES)


def seen_of(pipeline: Pipeline) -> ObservedPipeline:
    return replace(observe(pipeline, recorded(), range(4), cores=2), frame_seconds=1e-9)


def results_of(found: Replay) -> PipelineResults:
    return PipelineResults(
        sinks={
            sink: [(frame, plain_result(value)) for frame, value in rows]
            for sink, rows in found.results.items()
        },
        quality={},
    )


def ran(pipeline: Pipeline) -> PipelineResults:
    replay(pipeline, recorded(), range(PRIME))
    return results_of(replay(pipeline, recorded(), range(PRIME, FRAMES)))


class Head(nn.Module):
    """A stage that is a module: images in, maps out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.layers(images)


def aligned() -> Pipeline:
    return three_tasks(lambda seed: declare(Head(seed), align=lambda last, then, now: last))


def in_modes() -> Pipeline:
    calls = {0: {"town"}, 1: {"motorway"}, 7: {"town", "motorway"}}
    return three_tasks(
        lambda seed: declare(
            Head(seed), modes=calls[seed], mode=lambda images: "town", otherwise=torch.zeros(1)
        )
    )


def shareable() -> Pipeline:
    return three_tasks(lambda seed: declare(Task(seed), encoder="encoder", shared_as="images"))


def masked() -> Pipeline:
    def left_half(images: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(len(images), images.shape[2] // 16, images.shape[3] // 16)
        mask[:, :, :2] = 1
        return mask.bool()

    return three_tasks(lambda seed: declare(Head(seed), regions=left_half, tile=16))


FITS: dict[str, tuple[Make, bool]] = {
    "shared-backbones": (three_tasks, True),
    "shared-encoder": (shareable, True),
    "pruned-heads": (in_modes, False),
    "no-gradients": (three_tasks, True),
    "vectorised-stages": (three_tasks, True),
    "camera-batching": (three_tasks, True),
    "operator-threads": (three_tasks, True),
    "channels-last": (three_tasks, True),
    "bfloat16-stages": (three_tasks, True),
    "compiled-stages": (lambda: three_tasks(Head), True),
    "exported-stages": (three_tasks, True),
    "int8-stages": (three_tasks, True),
    "reuse-in-time": (aligned, False),
    "refresh-in-turn": (lambda: three_tasks(Head), False),
    "sparse-regions": (masked, False),
    "executor": (three_tasks, True),
    "newest-frame": (three_tasks, True),
    "steady-process": (three_tasks, True),
}
"""Cure → a pipeline that it fits, and whether results stay within the card's freedom there: on
images of noise what is kept from the last frame is wrong, and the check must say so."""


def test_every_cure_has_a_pipeline_here() -> None:
    assert set(FITS) == set(all_cures())


@pytest.mark.sweep("reuse-in-time")
@pytest.mark.parametrize("name", FITS)
def test_a_cure_applies_and_its_results_pass_or_fail_its_own_check(name: str) -> None:
    make, holds = FITS[name]
    known, threads = cure(name), torch.get_num_threads()
    before = ran(make())
    seen = replace(seen_of(make()), has_quality=True, queue_ratio=2.0)
    fit = known.applies(make(), seen)
    assert fit.options, fit.reason
    try:
        after = ran(known.apply(make(), fit.options[0]))
    finally:
        torch.set_num_threads(threads)
    checked = check_within(known.CARD.freedom)(before, after, 0.0)
    assert checked.passed is holds, checked.summary


@pytest.mark.parametrize("name", list(FITS))
def test_a_cure_says_why_it_does_not_apply(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # a machine of one core, as `bare` is
    made = Pipeline("nothing")
    camera = made.sensor("camera", lambda frame: frame, rate="30Hz")
    made.stage("count", lambda frame: frame + 1, camera.via("latest-only", depth=1))
    bare = ObservedPipeline(frame_seconds=0.01, stage_seconds={}, modules=())
    always = {"steady-process"}
    fit = cure(name).applies(made, bare)
    assert bool(fit.options) is (name in always)
    assert bool(fit.reason) is (name not in always)


def test_twins_are_found_and_computed_once() -> None:
    made = three_tasks()
    calls: list[int] = []
    seen = seen_of(three_tasks())
    fit = cure("shared-backbones").applies(made, seen)
    assert fit.options[0]["groups"] == "detect:encoder, lane:encoder, depth:encoder"
    changed = cure("shared-backbones").apply(made, fit.options[0])
    for name in ("detect", "lane", "depth"):
        made.code[name].call.encoder[0].register_forward_hook(lambda *_: calls.append(1))
    replay(changed, recorded(), range(3))
    assert len(calls) == 3 * 4, "three frames of four cameras, by one encoder of three"


def test_encoders_of_other_weights_are_no_twins() -> None:
    made = three_tasks()
    with torch.no_grad():
        for name in ("lane", "depth"):
            made.code[name].call.encoder[0].weight.add_(1e-3 if name == "lane" else 2e-3)
    assert not cure("shared-backbones").applies(made, seen_of(made)).options


def test_a_loop_over_cameras_is_computed_as_one_batch() -> None:
    made = three_tasks()
    rows: list[int] = []
    fit = cure("camera-batching").applies(made, seen_of(three_tasks()))
    changed = cure("camera-batching").apply(made, {"modules": "detect:encoder"})
    inner = made.code["detect"].call.encoder[0]
    inner.register_forward_hook(lambda _, args, __: rows.append(len(args[0])))
    replay(changed, recorded(), range(3))
    assert "detect:encoder" in str(fit.options[0]["modules"])
    assert rows[-2:] == [4, 4]


def test_a_loop_that_looks_at_each_answer_stays_right() -> None:
    class Chained:
        def __init__(self, seed: int) -> None:
            del seed
            self.layer = nn.Conv2d(3, 3, 3, 1, 1)
            nn.init.constant_(self.layer.weight, 0.01)
            nn.init.zeros_(self.layer.bias)

        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            state = images[:1]
            for image in images[1:]:
                state = self.layer(state) + image
            return state.detach()

    before = ran(three_tasks(Chained))
    made = three_tasks(Chained)
    after = ran(cure("camera-batching").apply(made, {"modules": "detect:layer"}))
    assert check_within(cure("camera-batching").CARD.freedom)(before, after, 0.0).passed


def test_a_stage_runs_on_every_second_frame_and_is_aligned_between() -> None:
    counted = {"runs": 0, "aligned": 0}

    def slow(images: torch.Tensor) -> float:
        counted["runs"] += 1
        return float(images.sum())

    def align(last: float, then: Any, now: Any) -> float:
        counted["aligned"] += 1
        assert len(then) == len(now) == 1
        return last

    declare(slow, align=align)
    made = Pipeline("slow")
    camera = made.sensor("camera", lambda frame: torch.ones(2) * frame, rate="30Hz")
    made.stage("sum", slow, camera)
    changed = cure("reuse-in-time").apply(made, {"stages": "sum", "every": 2})
    replay(changed, record(made, 8), range(8))
    assert counted == {"runs": 5, "aligned": 3}, "the first frame, and every second one"


def test_preprocessing_is_understood_from_what_it_does() -> None:
    recipe = understand([(cameras(frame), preprocess(cameras(frame))) for frame in range(2)])
    assert recipe is not None
    assert (recipe.top, recipe.left, recipe.reduction, recipe.how) == (2, 0, 2, "mean")
    np.testing.assert_allclose(recipe(cameras(9)), preprocess(cameras(9)), atol=1e-5)


def test_preprocessing_that_is_no_scaling_is_left_alone() -> None:
    samples = [(cameras(frame), preprocess(cameras(frame)) ** 2) for frame in range(2)]
    assert understand(samples) is None


def test_an_option_that_names_no_module_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no module 'detect:neck'.*detect:encoder"):
        cure("channels-last").apply(three_tasks(), {"modules": "detect:neck"})
