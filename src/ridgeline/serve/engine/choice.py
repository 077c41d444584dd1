"""Which rows of a step's logits belong to whom: the bridge from slices to the sampler.

Usually every slice that samples has one row and that is all. Beyond it: drafts have a row each, a
request with several answers samples all their first tokens from one row, prompt logprobs want a row
for every token of the prompt, and embeddings want none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ridgeline.batching.sequence import Sequence, Slice, Step
from ridgeline.serve.engine.answers import Answer
from ridgeline.serve.engine.step_inputs import Rows
from ridgeline.serve.sampling.sampler import Wanted


@dataclass(slots=True)
class Choice:
    """What the sampler is asked in one step."""

    wanted: list[Wanted] = field(default_factory=list)
    places: list[tuple[int, Answer]] = field(default_factory=list)
    """Of each wanted: which slice it comes from, and the answer that the slice computes."""
    rows: list[int] = field(default_factory=list)
    """Of the logits, in the order of `wanted`."""
    prompt_rows: list[tuple[Answer, Slice, int]] = field(default_factory=list)
    """Slices whose every token has a row, and the first of these rows."""
    beam_rows: list[tuple[int, Sequence, int]] = field(default_factory=list)
    """Of beam searches: slice, sequence, row."""

    def picked_from(self, logits: Tensor) -> Tensor:
        """The rows that `wanted` asks for, to be overwritten."""
        if len(self.rows) == len(logits) and not (self.prompt_rows or self.beam_rows):
            return logits  # as they are: then every row is wanted once, in order
        return logits[self.rows]


def choose(
    step: Step,
    answers: Mapping[Sequence, Answer],
    rows_of: Mapping[Sequence, Rows],
    probabilities: Mapping[Sequence, Tensor],
) -> Choice:
    """Go through the slices of a step in the order in which `StepInputs` laid out its rows.

    Args:
        step: As computed.
        answers: By sequence; one that has none is a beam.
        rows_of: As given to `StepInputs.batch`.
        probabilities: [drafts, V] that a sequence's drafts were drawn from, where they were.
    """
    choice = Choice()
    first = 0
    for place, one in enumerate(step.slices):
        kind = rows_of.get(one.sequence)
        if kind == "none":
            continue
        if kind == "all":
            choice.prompt_rows.append((answers[one.sequence], one, first))
            count = one.num_tokens
        else:
            count = 1 + len(one.drafts) if one.samples else 0
        last = first + count
        answer = answers.get(one.sequence)
        if one.samples and answer is None:
            choice.beam_rows.append((place, one.sequence, last - 1))
        elif one.samples and answer is not None:
            _want(choice, place, answer, one, last, probabilities)
        first = last
    return choice


def _want(
    choice: Choice,
    place: int,
    answer: Answer,
    one: Slice,
    last: int,
    probabilities: Mapping[Sequence, Tensor],
) -> None:
    drafted = probabilities.get(one.sequence) if one.drafts else None
    if drafted is not None:
        drafted = drafted[: len(one.drafts)]
    choice.wanted.append(Wanted(answer.state, one.drafts, drafted))
    choice.places.append((place, answer))
    choice.rows.extend(range(last - 1 - len(one.drafts), last))
    for sibling in answer.siblings:
        choice.wanted.append(Wanted(sibling))
        choice.places.append((place, answer))
        choice.rows.append(last - 1)
