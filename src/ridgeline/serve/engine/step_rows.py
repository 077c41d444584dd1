"""Whose the rows of a step's logits are, and where the drafts that a tree keeps belong.

Usually every slice that samples has one row of logits and that is all. Beyond it: drafts have a row
each, a request with several completions samples all their first tokens from one row, prompt
logprobs want a row for every token of the prompt, and embeddings want none.

Of a model in stages, as many steps as there are stages are begun before the first one is finished,
each with its part of the running requests, so that no stage waits for another (`Flights`); a
request is in one of them at a time. Stages compute them in order, so what one step writes into a
block is there for the next, and a block that is freed meanwhile is written over later. A step of a
few requests takes about as long as one of twice as many, which reads the same weights, so there are
several only where each has its `LEAST_SEQUENCES`. What a step has to be alone for goes on alone:
drafts, which need the tokens of the step before for every sequence, and beams, which are compared
with each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ridgeline.batching.sequence import Sequence, Slice, Step
from ridgeline.serve.engine.requests import OpenCompletion
from ridgeline.serve.model.batch import Rows
from ridgeline.serve.model.loaded import ForwardOutput
from ridgeline.serve.sampling.sampler import Wanted
from ridgeline.serve.sampling.state import Picked


@dataclass(slots=True)
class StepRows:
    """Whose the rows of a step's logits are, in the order in which `StepInputs` laid them out."""

    wanted: list[Wanted] = field(default_factory=list)
    places: list[tuple[int, OpenCompletion]] = field(default_factory=list)
    """The slice that each of `wanted` comes from, and the completion that the slice computes."""
    of_logits: list[int] = field(default_factory=list)
    """Rows of the logits, in the order of `wanted`."""
    prompts: list[tuple[OpenCompletion, Slice, int]] = field(default_factory=list)
    """Slices whose every token has a row, and the first of these rows."""
    beams: list[tuple[int, Sequence, int]] = field(default_factory=list)
    """Beams with their slice, sequence and row."""

    def of_living(self) -> StepRows:
        """The rows of sequences that have not ended meanwhile."""
        living = StepRows(
            prompts=[one for one in self.prompts if _lives(one[0].sequence)],
            beams=[one for one in self.beams if _lives(one[1])],
        )
        first = 0
        for one, place in zip(self.wanted, self.places, strict=True):
            last = first + 1 + len(one.drafts)
            if _lives(place[1].sequence):
                living.wanted.append(one)
                living.places.append(place)
                living.of_logits += self.of_logits[first:last]
            first = last
        return living

    def picked_from(self, logits: Tensor) -> Tensor:
        """The rows that `wanted` asks for, to be overwritten."""
        if len(self.of_logits) == len(logits) and not (self.prompts or self.beams):
            return logits  # as they are: then every row is wanted once, in order
        return logits[self.of_logits]


@dataclass(frozen=True, slots=True)
class Worked:
    """A step, or a part of one, that was computed and picked from; nothing has changed yet."""

    step: Step
    computed: ForwardOutput
    rows: StepRows
    picked: list[Picked]


def rows_of_step(
    step: Step,
    completions: Mapping[Sequence, OpenCompletion],
    rows_of: Mapping[Sequence, Rows],
    probabilities: Mapping[Sequence, Tensor],
) -> StepRows:
    """The owner of each row of a step's logits.

    Args:
        step: What is computed.
        completions: Those under way, by their sequences.
        rows_of: Sequences that want other rows than those that are sampled from.
        probabilities: What the drafts of a sequence were drawn from, [drafts, V].
    """
    rows = StepRows()
    first = 0
    for place, one in enumerate(step.slices):
        kind = rows_of.get(one.sequence)
        if kind == "none":
            continue
        if kind == "all":
            rows.prompts.append((completions[one.sequence], one, first))
            count = one.num_tokens
        else:
            count = 1 + len(one.drafts) if one.samples else 0
        last = first + count
        completion = completions.get(one.sequence)
        if one.samples and completion is None:
            rows.beams.append((place, one.sequence, last - 1))
        elif one.samples and completion is not None:
            _want(rows, place, completion, one, last, probabilities)
        first = last
    return rows


def moves_of_paths(
    worked: Worked, sampled: list[list[int]], block_size: int
) -> list[tuple[int, int]]:
    """The moves by which keys and values of drafts that a tree keeps come to lie as a chain's do.

    Args:
        worked: The step.
        sampled: What each of its slices is given.
        block_size: Tokens of a block.

    Returns:
        From where to where: a block's number times `block_size`, plus the place in the block.
    """
    rows, size = worked.rows, block_size
    moves: list[tuple[int, int]] = []
    for (place, completion), one, found in zip(
        rows.places, rows.wanted, worked.picked, strict=True
    ):
        if not found.path or one.state is not completion.state:
            continue
        slice_ = worked.step.slices[place]
        sequence = slice_.sequence
        blocks, root = sequence.blocks, sequence.place(slice_.start, size)
        for depth, draft in enumerate(found.path[: max(0, len(sampled[place]) - 1)]):
            if draft != depth:
                origin, target = root + 1 + draft, root + 1 + depth
                moves.append(
                    (
                        blocks[origin // size] * size + origin % size,
                        blocks[target // size] * size + target % size,
                    )
                )
    return moves


def _lives(sequence: Sequence) -> bool:
    return sequence.finish_reason is None


def _want(
    rows: StepRows,
    place: int,
    completion: OpenCompletion,
    one: Slice,
    last: int,
    probabilities: Mapping[Sequence, Tensor],
) -> None:
    drafted = probabilities.get(one.sequence) if one.drafts else None
    if drafted is not None:
        drafted = drafted[: len(one.drafts)]
    rows.wanted.append(Wanted(completion.state, one.drafts, drafted, one.parents))
    rows.places.append((place, completion))
    rows.of_logits.extend(range(last - 1 - len(one.drafts), last))
    for sibling in completion.siblings:
        rows.wanted.append(Wanted(sibling))
        rows.places.append((place, completion))
        rows.of_logits.append(last - 1)


LEAST_SEQUENCES = 16
"""Requests of a step, where there are others under way (`bench/serve_stages.py`)."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One step under way."""

    step: Step
    rows: StepRows
    """Whose the rows of its logits will be."""
    number: int
    """By which the runner knows it."""
    began: float

    @property
    def living(self) -> Step:
        """The step without those that have ended since."""
        alive = tuple(one for one in self.step.slices if one.sequence.finish_reason is None)
        return self.step if len(alive) == len(self.step.slices) else Step(alive)


class Flights:
    """The steps under way, the first to be finished first."""

    def __init__(self) -> None:
        self._all: deque[Flight] = deque()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def __iter__(self) -> Iterator[Flight]:
        """All of them in their order."""
        return iter(self._all)

    @property
    def sequences(self) -> set[Sequence]:
        """The sequences that are in one of them."""
        return {one.sequence for flight in self._all for one in flight.step.slices}

    def begin(self, flight: Flight) -> None:
        """Note that a step is under way."""
        self._all.append(flight)

    def land(self) -> Flight:
        """The one that has been under way for longest, which is so no longer."""
        return self._all.popleft()
