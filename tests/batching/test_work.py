"""What a step computes, in numbers."""

from __future__ import annotations

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Request, Sequence, work_of
from ridgeline.records.step_log import StepWork


def test_chunks_decodes_and_drafts_are_told_apart() -> None:
    scheduler = Scheduler(Limits(max_tokens_per_step=6), BlockCache(20, 4))
    for name, first in (("a", 0), ("b", 50)):
        request = Request(id=name, prompt=tuple(range(first, first + 8)), max_tokens=9, arrival=0.0)
        scheduler.add(Sequence(request=request, tokens=list(request.prompt)), 0.0)
    seen = []
    for now in range(4):
        for one in scheduler.running:
            if now == 3:
                one.drafts = [7]
        step = scheduler.schedule(float(now))
        seen.append(work_of(step))
        scheduler.complete(step, [[0] if one.samples else [] for one in step.slices], float(now))
    assert seen == [
        StepWork(prompt_tokens=6, prompt_pairs=21),
        # Two more of the first behind six, four of the second.
        StepWork(prompt_tokens=6, prompt_pairs=2 * 6 + 3 + 10, prompts_done=1),
        StepWork(
            prompt_tokens=4, prompt_pairs=4 * 4 + 10, prompts_done=1, decodes=1, decode_context=9
        ),
        StepWork(decodes=4, decode_context=11 + 10),
    ]
