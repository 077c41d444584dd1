"""What one step holds, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from tests.batching.fake_model import FakeModel, following, generated

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits, QueueFull, TooLong
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Request, Sequence, Status
from ridgeline.errors import InputError


def scheduler_of(
    blocks: int = 64, size: int = 4, *, prefix: bool = True, **limits: Any
) -> Scheduler:
    return Scheduler(Limits(**limits), BlockCache(blocks, size, prefix=prefix))


def sequence_of(length: int, answer: int = 8, first: int = 0, **more: Any) -> Sequence:
    prompt = tuple((first + i) % 19 for i in range(length))
    request = Request(id=f"{length}", prompt=prompt, max_tokens=answer, **{"arrival": 0.0, **more})
    return Sequence(request=request, tokens=list(prompt))


def added(scheduler: Scheduler, *sequences: Sequence) -> FakeModel:
    for sequence in sequences:
        scheduler.add(sequence, 0.0)
    return FakeModel(scheduler)


def shape(model: FakeModel) -> list[tuple[int, int]]:
    return [(one.start, one.count) for one in model.run().slices]


def test_decodes_come_first_and_prompts_fill_the_budget_in_chunks() -> None:
    scheduler = scheduler_of(max_tokens_per_step=8)
    model = added(scheduler, sequence_of(3))
    assert shape(model) == [(0, 3)]
    scheduler.add(sequence_of(18, first=5), 0.0)
    assert shape(model) == [(3, 1), (0, 7)]
    assert shape(model) == [(4, 1), (7, 7)]
    assert shape(model) == [(5, 1), (14, 4)]
    assert shape(model) == [(6, 1), (18, 1)]


def test_without_chunks_a_prompt_waits_until_it_fits_whole() -> None:
    scheduler = scheduler_of(
        max_tokens_per_step=16, max_length=16, chunked_prefill=False, prefix=False
    )
    model = added(scheduler, sequence_of(10, 2), sequence_of(12, 2))
    assert shape(model) == [(0, 10)]
    assert shape(model) == [(10, 1), (0, 12)]


def test_without_chunks_a_budget_below_the_longest_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="raise max_tokens_per_step from 8 to max_length, 16"):
        scheduler_of(max_tokens_per_step=8, max_length=16, chunked_prefill=False)


def test_a_known_prefix_is_not_computed_again_and_the_last_token_always_is() -> None:
    scheduler = scheduler_of()
    model = added(scheduler, sequence_of(12, 1))
    assert shape(model) == [(0, 12)]
    again = sequence_of(12, 1)
    scheduler.add(again, 0.0)
    assert shape(model) == [(8, 4)]
    assert again.cached_tokens == 8
    assert again.tokens[-1] == following(list(again.request.prompt))
    assert scheduler.counters.prefix_queries == 24
    assert scheduler.counters.prefix_hits == 8


def test_prompts_that_arrive_together_share_their_prefix_in_the_same_step() -> None:
    model = added(scheduler_of(), sequence_of(13), sequence_of(14))
    assert shape(model) == [(0, 13), (12, 2)]


@pytest.mark.parametrize("more", [{"adapter": "other"}, {"reuse_prefix": False}])
def test_another_adapter_or_a_wish_for_all_logits_shares_nothing(more: dict[str, Any]) -> None:
    model = added(scheduler_of(), sequence_of(13), sequence_of(13, **more))
    assert shape(model) == [(0, 13), (0, 13)]


def test_the_newest_gives_way_computes_again_and_says_what_was_wasted() -> None:
    scheduler = scheduler_of(7, prefix=False)
    old, new = sequence_of(8, 12), sequence_of(7, 12, first=4)
    model = added(scheduler, old, new)
    preempted = []
    while scheduler.has_work:
        preempted += model.run().preempted
        scheduler.check()
    assert preempted == [new]
    assert new.num_preemptions == scheduler.counters.preemptions == 1
    assert new.wasted_tokens == scheduler.counters.wasted_tokens > 7
    for one in (old, new):
        assert one.tokens[len(one.request.prompt) :] == generated(one.request.prompt, 12)


def test_under_priority_the_least_urgent_gives_way_though_it_is_older() -> None:
    scheduler = scheduler_of(7, prefix=False, order="priority")
    low, high = sequence_of(8, 12, priority=5), sequence_of(7, 12, first=4, priority=0)
    model = added(scheduler, low)
    model.run()
    scheduler.add(high, 0.0)
    while scheduler.has_work:
        model.run()
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)


def test_a_sequence_alone_goes_on_until_the_cache_is_full() -> None:
    scheduler = scheduler_of(4)
    only = sequence_of(5, 100)
    model = added(scheduler, only)
    while scheduler.has_work:
        model.run()
    assert only.finish_reason is FinishReason.LENGTH
    assert len(only.tokens) == 17, "the last token needs no KV"


def test_what_can_never_fit_is_refused_when_it_comes() -> None:
    scheduler = scheduler_of(4, max_waiting=1)
    with pytest.raises(TooLong, match="17 tokens and at most 16 leave room"):
        scheduler.add(sequence_of(17), 0.0)
    scheduler.add(sequence_of(16), 0.0)
    with pytest.raises(QueueFull, match="1 requests wait"):
        scheduler.add(sequence_of(2), 0.0)


def test_forks_share_blocks_and_copy_the_one_they_write() -> None:
    scheduler = scheduler_of()
    parent = sequence_of(6)
    model = added(scheduler, parent)
    model.run()
    held = scheduler.cache.num_free
    last = (parent.tokens[-1] + 1) % 19
    child = scheduler.fork(parent, parent.request, 0.0, last_token=last)
    model.computed[child] = child.num_computed
    assert scheduler.cache.num_free == held, "a fork costs nothing"
    step = model.run()
    assert len(step.copies) == 1
    assert parent.blocks[0] == child.blocks[0]
    assert parent.blocks[1] != child.blocks[1]
    assert child.tokens[-2] == last
    assert child.tokens[-1] == following(child.tokens[:-1])
    assert parent.tokens[-1] == following(parent.tokens[:-1])


def test_drafts_are_checked_in_one_step_and_counted() -> None:
    scheduler = scheduler_of()
    only = sequence_of(6)
    model = added(scheduler, only)
    model.run()
    right = generated(only.request.prompt, 4)
    only.drafts = [right[1], right[2], (right[3] + 1) % 19]
    step = model.run()
    assert step.slices[0].num_tokens == 4
    assert only.tokens[6:] == right
    assert (only.num_computed, only.drafts) == (9, [])
    assert (scheduler.counters.drafted_tokens, scheduler.counters.accepted_tokens) == (3, 2)


def test_a_tree_is_checked_in_one_step_and_what_it_did_not_need_is_given_back() -> None:
    scheduler = scheduler_of()
    only = sequence_of(6)
    model = added(scheduler, only)
    model.run()
    right = generated(only.request.prompt, 5)
    wrong = [(token + 1) % 19 for token in right]
    # Two candidates for each place; the second of each is right, the first leads nowhere.
    only.drafts = [wrong[1], right[1], wrong[2], right[2], wrong[3], right[3]]
    only.parents = (-1, -1, 1, 1, 0, 3)
    step = scheduler.schedule(0.0)
    assert (step.slices[0].num_tokens, len(only.blocks)) == (7, 4)
    scheduler.complete(step, model.compute(step), 0.0)
    assert only.tokens[6:] == right
    assert (only.num_computed, len(only.blocks)) == (10, 3)
    counters = scheduler.counters
    assert (counters.draft_rounds, counters.drafted_tokens, counters.accepted_tokens) == (1, 6, 3)
    scheduler.check()
    assert scheduler.cache.num_free == 64 - 3


def test_a_tree_is_cut_where_the_answer_or_the_step_ends() -> None:
    scheduler = scheduler_of(max_tokens_per_step=4)
    for most, kept in ((3, 2), (9, 3)):
        one = sequence_of(2, most, first=most)
        model = added(scheduler, one)
        model.run()
        one.drafts, one.parents = [3, 4, 5, 6, 7], (-1, -1, 0, 2, 1)
        step = scheduler.schedule(0.0)
        assert step.slices[0].drafts == (3, 4, 5)[:kept]
        assert step.slices[0].parents == (-1, -1, 0)[:kept]
        scheduler.finish(one, FinishReason.ABORT, 0.0)


def test_drafts_never_make_an_answer_too_long_and_leave_half_to_prompts() -> None:
    scheduler = scheduler_of(max_tokens_per_step=9)
    first = sequence_of(6, 4)
    model = added(scheduler, first)
    model.run()
    first.drafts = [1] * 8
    scheduler.add(sequence_of(20, first=9), 0.0)
    step = scheduler.schedule(0.0)
    assert [one.num_tokens for one in step.slices] == [3, 6]
    model.check(step)


def test_a_handover_keeps_its_blocks_until_they_are_fetched() -> None:
    scheduler = scheduler_of(prefix=False)
    given = sequence_of(6, 5, prefill_only=True)
    model = added(scheduler, given)
    model.run()
    assert given.finish_reason is FinishReason.HANDOVER
    assert (given.num_computed, len(given.blocks)) == (6, 2)
    scheduler.release(given)
    assert scheduler.cache.num_free == 64


def test_an_adopted_sequence_goes_on_without_its_prompt_being_computed() -> None:
    scheduler = scheduler_of()
    taken = sequence_of(6, 5)
    taken.tokens.append(following(taken.tokens))
    model = FakeModel(scheduler)
    assert scheduler.adopt(taken, 6, 0.0)
    model.fill(taken)
    assert shape(model) == [(6, 1)]
    assert taken.tokens[6:] == generated(taken.request.prompt, 2)


def test_nobody_is_adopted_before_one_who_came_earlier() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence_of(6), 0.0)
    late = sequence_of(6, arrival=1.0)
    late.tokens.append(0)
    assert not scheduler.adopt(late, 6, 1.0)
    assert late.status is Status.WAITING
    assert not late.blocks


def test_a_stop_in_the_last_token_allowed_is_a_stop() -> None:
    scheduler = scheduler_of()
    only = sequence_of(6, 1)
    added(scheduler, only).run()
    scheduler.finish(only, FinishReason.STOP, 0.0)
    scheduler.finish(only, FinishReason.ABORT, 0.0)
    assert only.finish_reason is FinishReason.STOP
    assert scheduler.counters.finished == {"length": 0, "stop": 1}


def test_a_sequence_finished_while_the_model_computes_is_passed_over() -> None:
    scheduler = scheduler_of()
    one, other = sequence_of(6), sequence_of(7)
    model = added(scheduler, one, other)
    step = scheduler.schedule(0.0)
    sampled = model.compute(step)
    scheduler.finish(one, FinishReason.ABORT, 0.0)
    scheduler.complete(step, sampled, 0.0)
    assert (one.num_generated, other.num_generated) == (0, 1)
    scheduler.check()
