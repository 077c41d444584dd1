"""How many of its drafts each decode gets into a step."""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.draft_tree import no_deeper
from ridgeline.batching.sequence import Counters, Slice


def give_drafts(
    slices: list[Slice],
    left: int,
    copies: list[tuple[int, int]],
    cache: BlockCache,
    counters: Counters,
) -> int:
    """Give drafts to slices, as far as budget, blocks and lengths allow; nobody gives way.

    Args:
        slices: The decodes of a step; those that get drafts are replaced.
        left: Tokens that drafts may take of the step.
        copies: Blocks whose content moves first; more are added.
        cache: Gives the blocks.
        counters: Count what was given.

    Returns:
        Tokens that drafts took.
    """
    used = 0
    for index, (sequence, start, count, *_) in enumerate(slices):
        drafts, parents = tuple(sequence.drafts), sequence.parents
        if not drafts:
            continue
        # One token comes on top of the accepted drafts.
        longest = max(0, sequence.most_tokens - len(sequence.tokens) - 1)
        if parents:
            drafts, parents = no_deeper(drafts, parents, longest)
            longest = cache.most_tokens - start - 1
        most = min(len(drafts), left - used, longest)
        if most > 0 and start + 1 + most > sequence.writable:
            cache.extend(sequence, start + 1 + most, copies)
            most = min(most, sequence.writable - start - 1)
        if most > 0:
            slices[index] = Slice(sequence, start, count, drafts[:most], parents[:most])
            used += most
            counters.draft_rounds += 1
        sequence.drafts, sequence.parents = [], ()
    counters.drafted_tokens += used
    return used
