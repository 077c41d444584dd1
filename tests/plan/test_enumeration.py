"""Every layout that is enumerated is one that a framework could run, and none is missing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.tasks import a_mixture, a_model, a_space

from ridgeline.plan.training.enumeration import Space, chunks, divisors, skeletons
from ridgeline.records.layout import Layout

LAYERS = 12


def every(space: Space, size: int = 16_384) -> list[Layout]:
    return [one.at(index) for one in chunks(space, size) for index in range(len(one))]


spaces = st.builds(
    a_space,
    model=st.sampled_from([a_model(), a_mixture(), a_model(layers=10), a_model(kv_heads=16)]),
    num_devices=st.sampled_from([1, 2, 6, 8, 12, 16]),
    widest_tensor=st.sampled_from([1, 4, 8]),
    global_batch=st.sampled_from([1, 4, 6, 12, 16]),
    seq=st.sampled_from([96, 512, 2048]),
    precisions=st.sampled_from([("bf16",), ("bf16", "fp8")]),
    thorough=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(space=spaces)
def test_every_enumerated_layout_is_valid(space: Space) -> None:
    model = space.model
    for layout in every(space)[::7]:  # Layout's own checks run on construction
        assert layout.num_devices == space.num_devices
        assert layout.global_batch % (layout.dp * layout.micro_batch) == 0
        assert layout.tp <= space.widest_tensor
        assert model.heads % layout.tp == 0
        assert model.kv_heads % layout.tp == 0 or layout.tp % model.kv_heads == 0
        assert layout.pp * layout.vpp <= model.layers
        assert -(-model.layers // layout.pp) * (layout.pp - 1) < model.layers
        assert layout.cp == 1 or space.seq % (2 * layout.cp) == 0
        assert not layout.sp or (space.seq // layout.cp) % layout.tp == 0
        assert (layout.dp * layout.cp) % layout.fsdp == 0
        assert (layout.zero > 0) == (layout.fsdp > 1)
        assert layout.zero != 2 or layout.num_microbatches == 1
        if layout.schedule == "interleaved":
            assert layout.vpp > 1
            assert model.layers % (layout.pp * layout.vpp) == 0
            assert layout.num_microbatches % layout.pp == 0
        else:
            assert layout.vpp == 1
        experts = 1 if model.experts is None else model.experts.num_experts
        assert experts % layout.ep == 0
        assert (layout.dp * layout.cp * layout.tp) % (layout.ep * layout.etp) == 0
        assert layout.etp in (1, layout.tp)


@settings(max_examples=20, deadline=None)
@given(space=spaces, size=st.sampled_from([1, 7, 100]))
def test_chunks_are_bounded_and_together_the_same_space(space: Space, size: int) -> None:
    small = list(chunks(space, size * 10))
    assert all(len(one) == size * 10 for one in small[:-1])
    assert all(0 < len(one) <= size * 10 for one in small)
    whole = every(space)
    assert [one.at(index) for one in small for index in range(len(one))] == whole
    assert len(set(whole)) == len(whole)


def test_no_valid_layout_is_missing_on_eight_devices() -> None:
    space = a_space(num_devices=8, global_batch=8, seq=512)
    sizes = (1, 2, 4, 8)
    expected = set()
    for dp, tp, pp, cp, micro in itertools.product(sizes, sizes, (1, 2, 4, 8), sizes, sizes):
        uneven = -(-LAYERS // pp) * (pp - 1) >= LAYERS
        if dp * tp * pp * cp != 8 or 8 % (dp * micro) or (pp > 1 and uneven):
            continue
        ranks, count = dp * cp, 8 // (dp * micro)
        sharded = [(z, g) for z in (1, 2, 3) for g in divisors(ranks)[1:] if z != 2 or count == 1]
        chunked = [(1, "1f1b")]
        if pp > 1 and LAYERS % pp == 0 and count % pp == 0:
            chunked += [(v, "interleaved") for v in divisors(LAYERS // pp)[1:]]
        for (zero, fsdp), (vpp, schedule), recompute in itertools.product(
            [(0, 1), *sharded], chunked, ("none", "selective", "full")
        ):
            expected.add(
                Layout(
                    dp=dp, fsdp=fsdp, zero=zero, tp=tp, sp=tp > 1, pp=pp, vpp=vpp,
                    schedule=schedule, cp=cp, micro_batch=micro, global_batch=8,
                    recompute=recompute,
                )
            )  # fmt: skip
    assert set(every(space)) == expected


def test_a_sequence_that_cannot_be_cut_turns_sequence_parallelism_off() -> None:
    layouts = every(a_space(seq=1001, num_devices=2, global_batch=2))
    assert {layout.sp for layout in layouts if layout.tp > 1} == {False}
    assert {layout.cp for layout in layouts} == {1}


def test_micro_batches_that_cannot_fit_are_left_out() -> None:
    """12 layers of 2048 x 2048 inputs in 16 bits are 101 MB for each sequence."""
    layouts = every(a_space(num_devices=1, global_batch=64, capacity_bytes=0.5e9))
    assert max(layout.micro_batch for layout in layouts) == 4


def test_a_thin_space_is_part_of_the_thorough_one() -> None:
    whole, thin = every(a_space(global_batch=48)), every(a_space(global_batch=48, thorough=False))
    assert set(thin) < set(whole)


def test_a_batch_that_no_data_ranks_divide_has_no_skeleton() -> None:
    assert skeletons(a_space(num_devices=13, global_batch=32)) == []


@pytest.mark.parametrize("number", [1, 2, 36, 97, 1024, 3072])
def test_divisors_are_all_and_ascending(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_arrays_have_the_types_that_the_cost_model_expects() -> None:
    first = next(chunks(a_space()))
    assert first.dp.dtype == np.int64
    assert first.sp.dtype == np.bool_
    assert first.compiled.all()
