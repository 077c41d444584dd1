"""Drafts in the engine's loop: proposed before a step, timed after it, left out where they cost."""

from __future__ import annotations

from functools import partial

import msgspec
import torch
from torch import Tensor

from ridgeline.batching.sequence import Sequence, Step
from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.attempt import by_halves
from ridgeline.serve.engine.log import log_failure
from ridgeline.serve.engine.requests import OpenCompletion
from ridgeline.serve.model.load import load
from ridgeline.serve.model.loaded import LoadedModel
from ridgeline.serve.speculation.draft_model import DraftModel
from ridgeline.serve.speculation.drafter import Drafter, Proposal
from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.speculation.eagle3 import Eagle3Head
from ridgeline.serve.speculation.eagle_drafter import EagleDrafter
from ridgeline.serve.speculation.eagle_facts import default_layers
from ridgeline.serve.speculation.eagle_tree import EagleTreeDrafter
from ridgeline.serve.speculation.head_tree import HeadTreeDrafter
from ridgeline.serve.speculation.heads import HeadDrafter, read_heads
from ridgeline.serve.speculation.ngram import NgramDrafter
from ridgeline.serve.speculation.pays import Pays
from ridgeline.serve.speculation.published_eagle import read_eagle


class Speculating:
    """One drafter and the clock that judges it."""

    def __init__(self, drafter: Drafter, *, always: bool) -> None:
        self.drafter = drafter
        self.probabilities: dict[Sequence, Tensor] = {}
        """[drafts, V] that the drafts of the coming step were drawn from."""
        self._pays = Pays(always=always)
        self._states: dict[Sequence, Tensor] = {}
        """[hidden] from which each sequence's last token was picked."""
        self._not_guessed: set[Sequence] = set()
        """Sequences at which the drafter failed; they go on without guesses."""

    @property
    def active(self) -> bool:
        """Whether drafts are in use."""
        return self._pays.speculating

    def propose(
        self, running: list[Sequence], completions: dict[Sequence, OpenCompletion], now: float
    ) -> None:
        """Set the drafts of all that are about to decode, if that pays now."""
        self.probabilities.clear()
        decoding = [
            one for one in running if len(one.tokens) - one.num_computed == 1 and one in completions
        ]
        if self._not_guessed:
            decoding = [one for one in decoding if one not in self._not_guessed]
        if self.drafter.needs_hidden:
            decoding = [one for one in decoding if one in self._states]
        if not decoding or not self._pays.wants(len(decoding), now):
            return

        def proposed(some: list[Sequence]) -> list[Proposal]:
            states = [completions[one].state for one in some]
            hidden = None
            if self.drafter.needs_hidden:
                hidden = torch.stack([self._states[one] for one in some])
            return self.drafter.propose(some, states, hidden)

        found = by_halves(decoding, proposed)
        for some, proposals in found.done:
            for one, proposal in zip(some, proposals, strict=True):
                one.drafts, one.parents = list(proposal.tokens), proposal.parents
                if proposal.probabilities is not None:
                    self.probabilities[one] = proposal.probabilities
        for one, error in found.failed:
            log_failure(f"{one.request.id} (its drafts)", error)
            self.drafter.forget(one)
            self._not_guessed.add(one)

    def keep_state(self, sequence: Sequence, state: Tensor) -> None:
        """Remember what a sequence's last token was picked from, if the drafter asks for it."""
        if self.drafter.needs_hidden:
            self._states[sequence] = state

    def show(self, sequence: Sequence, start: int, states: Tensor) -> None:
        """Give the states [T, hidden] of tokens from `start` on to a drafter that reads them."""
        if isinstance(self.drafter, EagleDrafter):
            self.drafter.show(sequence, start, states)

    def record(self, step: Step, num_tokens: int, seconds: float, now: float) -> None:
        """Take in the time of a step in which all decoded; others tell nothing about drafts."""
        if all(one.count == 1 and one.samples for one in step.slices):
            drafted = any(one.drafts for one in step.slices)
            self._pays.record(
                len(step.slices), seconds=seconds, tokens=num_tokens, drafted=drafted, now=now
            )

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended; of an unknown one, nothing."""
        self.drafter.forget(sequence)
        self.probabilities.pop(sequence, None)
        self._states.pop(sequence, None)
        self._not_guessed.discard(sequence)


def draft_model_of(config: EngineConfig) -> LoadedModel | None:
    """The small model, where one is to draft.

    Raises:
        InputError: It cannot be loaded.
    """
    wanted = config.speculation
    if wanted is None or wanted.kind != "draft":
        return None
    small = msgspec.structs.replace(
        config,
        model=wanted.path,
        weights="model",
        kv_dtype="model",
        speculation=None,
        adapters={},
        tp=1,
        pp=1,
    )
    return load(small)


def eagle_head_of(config: EngineConfig, loaded: LoadedModel) -> EagleHead | None:
    """The EAGLE head, where one is to draft; from then on the model shows what it reads.

    Raises:
        InputError: It cannot be read, or reads what this model does not have.
    """
    wanted = config.speculation
    if wanted is None or wanted.kind != "eagle":
        return None
    head = read_eagle(wanted.path).to(loaded.device, loaded.dtype)
    if isinstance(head, Eagle3Head):
        if config.compiled:
            raise InputError("--compiled shows no states between layers, which EAGLE-3 heads read")
        loaded.show_inputs_of(head.facts.layers_read or default_layers(loaded.layers))
    return head


def build_speculating(
    config: EngineConfig,
    loaded: LoadedModel,
    small: LoadedModel | None,
    head: EagleHead | None,
    num_blocks: int,
) -> Speculating | None:
    """What the configuration asks for.

    Raises:
        InputError: The drafter does not fit the model.
    """
    wanted = config.speculation
    if wanted is None:
        return None
    return Speculating(_drafter(config, loaded, small, head, num_blocks), always=wanted.always)


def _drafter(
    config: EngineConfig,
    loaded: LoadedModel,
    small: LoadedModel | None,
    head: EagleHead | None,
    num_blocks: int,
) -> Drafter:
    wanted = config.speculation
    assert wanted is not None
    if wanted.kind == "ngram":
        return NgramDrafter(wanted.num_drafts, wanted.longest_match)
    if wanted.kind == "heads":
        heads = read_heads(wanted.path).to(loaded.device, loaded.dtype)
        kind = (
            HeadDrafter if wanted.tree is None else partial(HeadTreeDrafter, num_nodes=wanted.tree)
        )
        return kind(
            heads,
            loaded.output_layer,
            hidden=loaded.hidden_size,
            vocab=loaded.vocab,
            num_drafts=wanted.num_drafts,
        )
    if head is not None:
        eagle = (
            EagleDrafter
            if wanted.tree is None
            else partial(EagleTreeDrafter, num_nodes=wanted.tree)
        )
        return eagle(
            head,
            loaded.input_layer,
            loaded.output_layer,
            hidden=loaded.hidden_size,
            vocab=loaded.vocab,
            num_drafts=wanted.num_drafts,
            max_sequences=config.max_sequences,
        )
    assert small is not None
    return DraftModel(
        small,
        vocab=loaded.vocab,
        num_drafts=wanted.num_drafts,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_sequences=config.max_sequences,
        max_tokens_per_step=config.max_tokens_per_step,
    )
