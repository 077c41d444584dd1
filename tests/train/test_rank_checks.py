"""Clipping, split losses and shards on four real ranks, started once."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable

import pytest
import torch
from tests.train.processes import run_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from ridgeline.records.layout import Layout
from ridgeline.train.batch import IGNORED
from ridgeline.train.loop import clip_gradients
from ridgeline.train.loss import _CHUNK_ELEMENTS, token_loss
from ridgeline.train.model import shard_of
from ridgeline.train.ranks import join, leave

_LAYOUTS = (
    Layout(dp=4, global_batch=4),
    Layout(dp=2, fsdp=2, zero=3, tp=2, global_batch=2),
    Layout(dp=2, tp=2, global_batch=2),
    Layout(pp=2, tp=2),
    Layout(pp=2, dp=2, fsdp=2, zero=3, global_batch=2),
    Layout(pp=4),
)


def clipping_equals_torchs_on_whole_gradients() -> None:
    """Random shapes and placements on every kind of mesh."""
    for seed in range(18):
        ranks = join(_LAYOUTS[seed % len(_LAYOUTS)], timeout_seconds=30)
        limit = (0.1, 1e9)[seed % 2]
        mine: list[nn.Parameter] = []
        whole: list[nn.Parameter] = []
        parts: list[Tensor] = []
        for stage in range(ranks.size("pp")):
            draw = random.Random(f"{seed} {stage}")
            generator = torch.Generator().manual_seed(seed * 10 + stage)
            for number in range(5):
                shape = [draw.randrange(1, 9) for _ in range(draw.randrange(1, 4))]
                gradient = torch.randn(shape, generator=generator)
                whole.append(nn.Parameter(torch.zeros(shape)))
                whole[-1].grad = gradient.clone()
                mesh = draw.choice([None, ranks.axis("tp"), ranks.axis("fsdp"), "fsdp x tp"])
                if mesh == "fsdp x tp":
                    mesh = ranks.mesh["shard", "tp"]
                choices: list[Placement] = [Replicate(), *(Shard(d) for d in range(len(shape)))]
                where = [draw.choice(choices) for _ in range(0 if mesh is None else mesh.ndim)]
                if stage != ranks.index("pp"):
                    continue
                local = (
                    gradient.clone()
                    if mesh is None
                    else distribute_tensor(gradient.clone(), mesh, where, src_data_rank=None)
                )
                mine.append(nn.Parameter(torch.zeros_like(local)))
                mine[-1].grad = local
                parts.append(whole[-1].grad)
                if number == 0 and stage == 1:
                    # A second copy of the first stage's last gradient is not counted again.
                    copy = whole[4]
                    mine.append(nn.Parameter(torch.zeros_like(copy)))
                    mine[-1].grad = copy.grad.clone()
                    mine[-1].counted_elsewhere = True
                    parts.append(copy.grad)
        expected = torch.nn.utils.clip_grad_norm_(whole, limit)
        norm = clip_gradients(mine, limit, ranks)
        assert abs(norm - float(expected)) < 1e-5 * float(expected), (seed, norm, expected)
        for parameter, part in zip(mine, parts, strict=True):
            found = parameter.grad
            full = found.full_tensor() if isinstance(found, DTensor) else found
            torch.testing.assert_close(full, part)


def gradients_of_one_rank_alone_are_clipped_by_their_own_norm() -> None:
    """Local SGD: no other rank is asked."""
    ranks = join(_LAYOUTS[0], timeout_seconds=30)
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), float(ranks.rank + 1))
    assert abs(clip_gradients([parameter], 1.0, ranks, alone=True) - 2 * (ranks.rank + 1)) < 1e-6
    torch.testing.assert_close(parameter.grad, torch.full((4,), 0.5), rtol=1e-5, atol=0.0)


def loss_over_a_split_vocabulary_is_the_loss_over_the_whole() -> None:
    """Vocabularies that ranks share unequally, down to fewer columns than ranks."""
    ranks = join(Layout(tp=4), timeout_seconds=30)
    mesh = ranks.axis("tp")
    _CHUNK_ELEMENTS["cpu"] = 4 * 97
    for vocab in (3, 4, 97, 1024):
        for z_loss in (0.0, 1e-2):
            generator = torch.Generator().manual_seed(vocab)
            logits = torch.randn(2, 9, vocab, generator=generator) * 30
            labels = torch.randint(vocab, (2, 9), generator=generator)
            labels[0, :4] = IGNORED
            whole = logits.clone().requires_grad_()
            split = distribute_tensor(logits, mesh, [Shard(2)], src_data_rank=None)
            split.requires_grad_()
            one, other = token_loss(whole, labels, z_loss), token_loss(split, labels, z_loss)
            torch.testing.assert_close(one, other)
            one.backward()
            other.backward()
            torch.testing.assert_close(split.grad.full_tensor(), whole.grad, rtol=1e-4, atol=1e-6)


def a_ranks_shard_is_what_dtensor_would_gather() -> None:
    """Cut without communication, gathered by DTensor; uneven and doubly cut dimensions, too."""
    ranks = join(Layout(dp=2, fsdp=2, zero=3, tp=2, global_batch=2), timeout_seconds=30)
    mesh = ranks.mesh["shard", "tp"]
    cases: list[tuple[tuple[int, ...], list[Placement]]] = [
        ((7, 3), [Shard(0), Replicate()]),
        ((3, 9), [Shard(0), Shard(1)]),
        ((8, 6), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((1, 5), [Replicate(), Shard(0)]),
        ((4, 8, 3), [Shard(0), _StridedShard(1, split_factor=2)]),
    ]
    for shape, placements in cases:
        full = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        empty = distribute_tensor(torch.empty(shape), mesh, placements, src_data_rank=None)
        local = shard_of(full, empty).contiguous()
        made = DTensor.from_local(
            local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()
        )
        assert torch.equal(made.full_tensor(), full), (shape, placements)


CHECKS: tuple[Callable[[], None], ...] = (
    clipping_equals_torchs_on_whole_gradients,
    gradients_of_one_rank_alone_are_clipped_by_their_own_norm,
    loss_over_a_split_vocabulary_is_the_loss_over_the_whole,
    a_ranks_shard_is_what_dtensor_would_gather,
)


def run_checks(_: object) -> dict[str, str]:
    """Each check's name and what went wrong, if anything did."""
    found = {}
    for check in CHECKS:
        try:
            check()
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
    leave()
    return found


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    return run_ranks(4, "tests.train.test_rank_checks:run_checks", timeout_seconds=120)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_four_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    failures = [outcome[name] for outcome in outcomes if outcome[name]]
    assert not failures, failures[0]
