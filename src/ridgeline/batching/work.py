"""A step in the numbers that decide how long it takes."""

from __future__ import annotations

from ridgeline.batching.step import Step
from ridgeline.records.step_log import StepWork


def work_of(step: Step) -> StepWork:
    """What a step computes; to be asked before the scheduler is told what came of it.

    A single token behind others is a decode, whatever it was asked for: the same kernels run.
    Drafts count as decodes of their own, but their sequence's cache is read once.
    """
    tokens = pairs = done = decodes = context = 0
    for sequence, start, count, drafts in step.slices:
        if count == 1 and start:
            decodes += 1 + len(drafts)
            context += start + 1 + len(drafts)
            continue
        tokens += count
        pairs += count * start + count * (count + 1) // 2
        done += start + count == len(sequence.tokens)
    return StepWork(tokens, pairs, done, decodes, context)
