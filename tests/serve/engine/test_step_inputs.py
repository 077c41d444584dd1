"""The tensors of a step, against what its slices say."""

from __future__ import annotations

import random

import torch

from ridgeline.batching.sequence import Request, Sequence, Slice, Step
from ridgeline.serve.model.batch import StepInputs

BLOCK = 4


def sequence(name: str, tokens: list[int], blocks: list[int]) -> Sequence:
    request = Request(id=name, prompt=tuple(tokens), max_tokens=9, arrival=0.0)
    return Sequence(request=request, tokens=tokens, blocks=blocks)


def test_tokens_positions_slots_and_rows_are_those_of_the_slices() -> None:
    chance = random.Random(2)
    inputs = StepInputs(max_sequences=2, block_size=BLOCK, device=torch.device("cpu"))
    free = list(range(500))
    chance.shuffle(free)
    sequences = []
    for index in range(7):  # more than rows were made for
        length = chance.randrange(5, 90)
        blocks = [free.pop() for _ in range(-(-(length + 3) // BLOCK))]
        sequences.append(
            sequence(str(index), [chance.randrange(99) for _ in range(length)], blocks)
        )
    slices = []
    for index, one in enumerate(sequences):
        start = chance.randrange(len(one.tokens))
        last = index % 2 == 0
        count = len(one.tokens) - start if last else max(1, len(one.tokens) - start - 1)
        if not last and start + count == len(one.tokens):
            start -= 1
        slices.append(Slice(one, start, count, (7, 8) if index == 2 else ()))
    step = Step(tuple(slices))
    batch = inputs.batch(
        step,
        rows_of={sequences[1]: "all", sequences[4]: "none"},
        adapters={sequences[3]: 5},
    )
    at = 0
    rows: list[int] = []
    for index, one in enumerate(slices):
        end = at + one.num_tokens
        own = one.sequence.tokens[one.start : one.start + one.count]
        positions = list(range(one.start, one.start + one.num_tokens))
        assert batch.tokens[at:end].tolist() == [*own, *one.drafts]
        assert batch.positions[at:end].tolist() == positions
        blocks = one.sequence.blocks
        assert batch.packed.slots[at:end].tolist() == [
            blocks[position // BLOCK] * BLOCK + position % BLOCK for position in positions
        ]
        context = int(batch.packed.context_lengths[index])
        assert context == positions[-1] + 1
        used = -(-context // BLOCK)
        assert batch.packed.block_tables[index, :used].tolist() == blocks[:used]
        assert int(batch.packed.query_starts[index]) == at
        if index == 1:
            rows += range(at, end)
        elif one.samples and index != 4:
            rows += range(end - 1 - len(one.drafts), end)
        assert batch.adapters is not None
        assert set(batch.adapters[at:end].tolist()) == {5 if index == 3 else 0}
        at = end
    assert batch.logit_rows.tolist() == rows


def test_a_block_that_was_copied_is_seen() -> None:
    inputs = StepInputs(max_sequences=2, block_size=BLOCK, device=torch.device("cpu"))
    one = sequence("a", list(range(6)), [3, 4])
    step = Step((Slice(one, 5, 1),))
    assert inputs.batch(step, rows_of={}, adapters={}).packed.slots.tolist() == [17]
    one.blocks[1] = 9
    assert inputs.batch(step, rows_of={}, adapters={}).packed.slots.tolist() == [37]
    inputs.forget(one)
    assert not inputs._rows
