"""What a step computed, written into its sequences: most of what a scheduler costs at many of them.

Plain decodes, which most slices are, all take the same few steps, so they have a loop of their own.
"""

from __future__ import annotations

from itertools import islice

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Counters, Sequence, Step


def take_in(
    step: Step, sampled: list[list[int]], now: float, cache: BlockCache, counters: Counters
) -> list[Sequence]:
    """Add the sampled tokens to the sequences of a step.

    Args:
        step: Computed.
        sampled: For each slice, as `Scheduler.complete` says.
        now: Seconds.
        cache: Gets blocks back that no later token needs.
        counters: Count the tokens.

    Returns:
        Those that are as long as they may become.
    """
    assert len(sampled) == len(step.slices), "something for each slice, be it nothing"
    ended: list[Sequence] = []
    generated = len(sampled)
    for sequence, new in zip(step.plain, sampled, strict=False):
        if sequence.finish_reason is not None:
            generated -= 1
            continue
        (token,) = new
        sequence.tokens.append(token)
        sequence.num_computed = computed = sequence.num_computed + 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if computed + 1 >= sequence.most_tokens:
            ended.append(sequence)
    first = len(step.plain)
    others = zip(islice(step.slices, first, None), islice(sampled, first, None), strict=True)
    for (sequence, start, count, drafts, parents), new in others:
        if sequence.finish_reason is not None:
            generated -= 1
            continue
        computed = start + count
        if computed < len(sequence.tokens):
            sequence.num_computed = computed
            generated -= 1
            continue
        accepted = len(new) - 1
        assert 0 <= accepted <= len(drafts), "one token, and at most one per draft"
        counters.accepted_tokens += accepted
        generated += accepted
        computed += accepted
        sequence.tokens += new
        sequence.num_computed = computed
        if parents:
            cache.shrink(sequence)
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if computed + 1 >= sequence.most_tokens:
            ended.append(sequence)
    if cache.kept is not None:
        for one in step.slices:
            if one.sequence.finish_reason is None:
                cache.slide(one.sequence)
    counters.generation_tokens += generated
    return ended
