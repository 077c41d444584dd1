"""An EAGLE head guesses a tree: of all that it holds possible, the guesses it is surest of.

    c(root) = 1,   c(child) = c(parent) · q(child | parent)

Li et al., "EAGLE-2", 2406.16858, section 4: what a head says of its own guesses is close to how
often they hold, so each step gets a tree of its own. Level by level the likeliest few nodes are
gone on from, each seeing the nodes on its own way, and of all nodes met the `num_nodes` with the
largest c are checked: a node's c is never above its parent's, so they are a tree. With no more
nodes than are gone on from at a level, that is the best tree there is by c.

The guesses are no draws: at each node the model's own token is picked as ever
(`sampling/sampler.py`), so answers are what they would be without guesses, seeded ones too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.batching.draft_tree import MOST_NODES
from ridgeline.batching.sequence import Sequence
from ridgeline.errors import InputError
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.drafter import Proposal
from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.speculation.eagle_drafter import EagleDrafter

WIDTH = 10
"""Nodes of a level that are gone on from at most, and children of each (EAGLE-2's top-k)."""


class EagleTreeDrafter(EagleDrafter):
    """Guesses one tree for every sequence whose last state it was shown.

    Args:
        head: As read.
        embedding: Of the target: [N] tokens to [N, hidden].
        output_embedding: Of the target, swapped or not: [N, hidden] to [N, V].
        hidden: Width of the target.
        vocab: Of the target.
        num_drafts: The depth of the tree at most.
        max_sequences: At once.
        num_nodes: Guesses that are checked in one step.

    Raises:
        InputError: The head belongs to another model, or no tree has so many guesses.
    """

    def __init__(
        self,
        head: EagleHead,
        embedding: nn.Module,
        output_embedding: nn.Module,
        *,
        hidden: int,
        vocab: int,
        num_drafts: int,
        max_sequences: int,
        num_nodes: int,
    ) -> None:
        if not 1 <= num_nodes <= MOST_NODES:
            raise InputError(f"--draft-tree {num_nodes}: a tree has 1 to {MOST_NODES} guesses")
        super().__init__(
            head,
            embedding,
            output_embedding,
            hidden=hidden,
            vocab=vocab,
            num_drafts=num_drafts,
            max_sequences=max_sequences,
        )
        self._num_nodes = num_nodes
        self._width = min(WIDTH, num_nodes, head.facts.draft_vocab or vocab)

    def memory(self) -> list[MemoryRow]:
        """Bytes of weights and window, and the tree that is guessed."""
        first, *rest = super().memory()
        told = f"a tree of {self._num_nodes} guesses, at most {self._num_drafts} deep"
        return [MemoryRow(what=first.what, bytes=first.bytes, note=told), *rest]

    def _guess(
        self,
        sequences: list[Sequence],
        states: list[SamplingState],  # noqa: ARG002 (as a chain's, which draws)
    ) -> list[Proposal]:
        """Certain guesses with their parents, the surest first."""
        head, device, width = self._head, self._window.device, self._width
        slots = torch.tensor([self._slot(one, sequences) for one in sequences], device=device)
        fused = self._catch_up(sequences, slots)[:, None]  # [S, nodes gone on from, …]
        places = torch.tensor([len(one.tokens) - 2 for one in sequences], device=device)[:, None]
        keys, values = self._window[:, slots]
        seen = self._filled[slots][:, None]  # [S, nodes gone on from, keys]
        sure = torch.zeros(len(sequences), 1, device=device)  # log c of these
        owners = torch.full((len(sequences), 1), -1, device=device)  # their numbers
        met: list[tuple[Tensor, Tensor, Tensor]] = []
        count = 0
        for depth in range(self._num_drafts):
            attended = nn.functional.scaled_dot_product_attention(
                head.queries(fused, places.expand(fused.shape[:2])).transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=seen[:, None],
                enable_gqa=True,
            )
            features = head.finish(fused, attended.transpose(1, 2).flatten(2))
            logits = head.logits(features.flatten(0, 1), self._output)
            chances, tokens = logits.log_softmax(-1).topk(width)
            chances = chances.unflatten(0, features.shape[:2]) + sure[..., None]
            tokens = tokens.unflatten(0, features.shape[:2]).flatten(1)
            parents = owners[..., None].expand(chances.shape).flatten(1)
            chances = chances.flatten(1)  # [S, nodes · width]
            met.append((tokens, chances, parents))
            if depth + 1 == self._num_drafts:
                break
            sure, best = chances.topk(width)
            owners = count + best
            count += chances.shape[1]
            behind = best // width  # which of the nodes gone on from each one follows
            rows = behind[..., None].expand(-1, -1, features.shape[-1])
            embedded = self._embedding(tokens.gather(1, best).flatten()).unflatten(0, best.shape)
            fused = head.fuse(embedded, features.gather(1, rows))
            places = places + 1
            key, value = head.keys_values(fused, places.expand(best.shape))
            keys, values = torch.cat((keys, key), dim=1), torch.cat((values, value), dim=1)
            seen = seen.gather(1, behind[..., None].expand(-1, -1, seen.shape[-1]))
            own = torch.eye(width, dtype=torch.bool, device=device).expand(len(seen), -1, -1)
            seen = torch.cat((seen, own), dim=-1)
        tokens, chances, parents = (torch.cat(one, dim=1) for one in zip(*met, strict=True))
        # In the order of their numbers where they are equal, so that parents come first.
        surest = chances.sort(dim=1, descending=True, stable=True).indices[:, : self._num_nodes]
        told = (surest, tokens.gather(1, surest), parents.gather(1, surest))
        return [_tree(*one) for one in zip(*(part.tolist() for part in told), strict=True)]


def _tree(numbers: list[int], tokens: list[int], parents: list[int]) -> Proposal:
    places = {number: place for place, number in enumerate(numbers)} | {-1: -1}
    return Proposal(tuple(tokens), parents=tuple(places[parent] for parent in parents))
