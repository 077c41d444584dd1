"""What a run learns: where its batches come from, and how what was learned is kept.

The loop, the checkpoints and whatever watches a run are the same for every task. There are two,
`language.py` and `images/task.py`; which one it is, the recipe says by `[data]` or `[images]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ridgeline.records.recipe import Recipe


class MicroBatch(Protocol):
    """Samples that pass through the model together; only the task's objective looks inside."""

    @property
    def labels(self) -> Tensor:
        """What should be answered; `IGNORED` where nothing should."""

    def num_targets(self) -> int:
        """Answers that a loss is taken of."""


class Feed(Protocol):
    """An endless iterator over steps, each a list of this rank's micro-batches on its device."""

    targets: int
    """Targets of the step last handed out, this rank's, counted on the host."""

    def __next__(self) -> Sequence[MicroBatch]:
        """The micro-batches of the next step."""

    def state_dict(self) -> dict[str, Any]:
        """What a later run needs to go on after the last step that was handed out.

        `samples` is how many samples were handed out, `identity` a checksum of the data.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            InputError: The state is of other data.
        """

    def close(self) -> None:
        """Stop reading ahead; a later `next` starts again."""

    def figures(self) -> dict[str, Any]:
        """Fields of the log's next line, since the last one. Every rank calls it."""

    def take_notes(self) -> str:
        """What the log is to say of samples since it was last asked; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTask:
    """One rank's view of what is learned, its data ready to be read."""

    recipe: Recipe
    """The recipe with what only the data could say filled in."""
    feed: Feed
    held_out: Callable[[], Iterable[MicroBatch]]
    """This rank's share of the held-out samples, once through, as many batches on every rank."""
    save: Callable[[Sequence[nn.Module], Path], None]
    """Write the trained model to a folder. Every rank calls it."""
    saves_what_is_judged: bool = False
    """Whether what is saved are the weights that held-out samples were judged with (an average,
    where one is kept), not those that the optimizer stepped last."""


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, or an output of transformers."""
    found = output if isinstance(output, torch.Tensor) else output.logits
    assert isinstance(found, torch.Tensor)
    return found
