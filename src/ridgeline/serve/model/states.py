"""The states that sequences leave in layers of fixed memory, and where an engine keeps them.

A step must be able to be computed again (`engine/attempt.py`): each sequence has two places for its
states. A step reads the one that stands where the step begins, and writes the other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

from ridgeline.serve.model.batch import SequenceSpan

States = dict[str, Tensor]
"""The states of one layer by kind and number, each [B, ...]."""
RECURRENT = "recurrent 0"
"""The state that a scan leaves, beside those of convolutions."""
NOWHERE = -1
"""A place that holds no sequence's states."""


class StatePool:
    """The states of the sequences that run: two places for each, in every layer."""

    def __init__(self) -> None:
        self._tensors: dict[int, States] = {}
        self._tokens: list[list[int]] = []
        """The tokens that the states of each row's two places have seen."""

    def reserve(self, rows: int) -> None:
        """Make room for so many sequences at once, when the first states come."""
        self._tokens += [[NOWHERE, NOWHERE] for _ in range(rows - len(self._tokens))]

    def places(self, spans: Sequence[SequenceSpan]) -> tuple[list[int], list[int]]:
        """Where each span's states are (-1: it begins its sequence), and where the new ones go."""
        read, write = [], []
        for span in spans:
            while len(self._tokens) <= span.row:
                self._tokens.append([NOWHERE, NOWHERE])
            tokens = self._tokens[span.row]
            if span.start == 0:
                tokens[:] = NOWHERE, NOWHERE
                read.append(NOWHERE)
                write.append(2 * span.row)
                continue
            at = tokens.index(span.start)  # a step begins where the one before it ended
            tokens[1 - at] = NOWHERE
            read.append(2 * span.row + at)
            write.append(2 * span.row + 1 - at)
        return read, write

    def note(self, spans: Sequence[SequenceSpan], write: Sequence[int]) -> None:
        """Let the places that were written count."""
        for span, place in zip(spans, write, strict=True):
            self._tokens[span.row][place % 2] = span.start + span.count

    def read(self, layer: int, places: Tensor) -> States:
        """Copies of the states at some places, [B]."""
        return {name: kept.index_select(0, places) for name, kept in self._tensors[layer].items()}

    def write(self, layer: int, places: Tensor, states: States) -> None:
        """Put states [B, ...] at some places, [B]."""
        kept = self._tensors.setdefault(layer, {})
        for name, new in states.items():
            room = kept.get(name)
            if room is None or len(room) < 2 * len(self._tokens):
                grown = new.new_zeros((2 * len(self._tokens), *new.shape[1:]))
                if room is not None:
                    grown[: len(room)] = room
                room = kept[name] = grown
            room.index_copy_(0, places, new)


def states_in(layer: LinearAttentionCacheLayerMixin) -> States:
    """The states that a layer's cache holds."""
    kinds = {"conv": layer.conv_states, "recurrent": layer.recurrent_states}
    return {
        f"{kind} {number}": state
        for kind, states in kinds.items()
        for number, state in states.items()
        if state is not None
    }


def fill(layer: LinearAttentionLayer, states: States) -> None:
    """Make a new layer's cache hold these states."""
    for name, state in states.items():
        kind, number = name.split()
        index = int(number)
        layer.has_previous_state[index] = True
        if kind == "conv":
            layer.conv_states[index] = state
            layer.is_conv_states_initialized[index] = True
            layer.conv_kernel_size[index] = state.shape[-1]
            layer.dtype, layer.device = state.dtype, state.device
        else:
            layer.recurrent_states[index] = state
            layer.is_recurrent_states_initialized[index] = True
