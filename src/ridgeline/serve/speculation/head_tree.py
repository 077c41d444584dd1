"""Heads guess a tree: the likeliest few of each head, put together along a sparse tree.

The tree stays the same for all steps: of all products of guesses, those that were right most often
on text that was held out when the heads were trained (`cost/serving/draft_trees.py`). Its tokens
are no draws: at each node the model's own token is picked as ever, and where a child of the node
has it, that child is accepted. So answers are what they would be without drafts, seeded ones too
(`sampling/sampler.py`), and a node is left with the sum of its children's probabilities, where a
single draft has its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.batching.draft_tree import MOST_NODES
from ridgeline.batching.sequence import Sequence
from ridgeline.cost.serving.draft_trees import best_draft_tree
from ridgeline.errors import InputError
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.drafter import Proposal
from ridgeline.serve.speculation.heads import DraftHeads, HeadDrafter


class HeadTreeDrafter(HeadDrafter):
    """Guesses one tree for every sequence.

    Args:
        heads: As read; they say how often each of their guesses was right.
        output_embedding: Of the target, swapped or not: [N, hidden] to [N, V].
        hidden: Width of the target.
        vocab: Of the target.
        num_drafts: The depth of the tree at most: so many heads are asked.
        num_nodes: Guesses that are checked in one step.

    Raises:
        InputError: The heads belong to another model, or do not say how good their guesses are.
    """

    def __init__(
        self,
        heads: DraftHeads,
        output_embedding: nn.Module,
        *,
        hidden: int,
        vocab: int,
        num_drafts: int,
        num_nodes: int,
    ) -> None:
        super().__init__(heads, output_embedding, hidden=hidden, vocab=vocab, num_drafts=num_drafts)
        if not 1 <= num_nodes <= MOST_NODES:
            raise InputError(f"--draft-tree {num_nodes}: a tree has 1 to {MOST_NODES} guesses")
        ranks = heads.facts.held_out_ranks[:num_drafts]
        if not ranks or not any(ranks[0]):
            raise InputError(
                "--draft-tree: these draft heads do not say how often their second and third"
                " guesses are right; train them again with: ridgeline draft-heads"
            )
        try:
            self.tree = best_draft_tree(ranks, num_nodes)
        except ValueError as error:
            raise InputError(f"--draft-tree: heads.json: {error}") from None
        places = {node: place for place, node in enumerate(self.tree.nodes)}
        self._parents = tuple(places.get(node[:-1], -1) for node in self.tree.nodes)
        self._heads_of = torch.tensor([len(node) - 1 for node in self.tree.nodes])
        self._ranks = torch.tensor([node[-1] for node in self.tree.nodes])

    @torch.inference_mode()
    def propose(
        self,
        sequences: list[Sequence],
        states: list[SamplingState],  # noqa: ARG002 (the drafters' common signature)
        hidden: Tensor | None,
    ) -> list[Proposal]:
        """Certain guesses with their parents."""
        assert hidden is not None
        if not sequences:
            return []
        ahead = self._heads(hidden)[: self.tree.depth]
        logits = self._output(ahead.flatten(0, 1)).unflatten(0, ahead.shape[:2])
        likeliest = logits.topk(int(self._ranks.max()) + 1, dim=-1).indices.cpu()
        tokens = likeliest[self._heads_of, :, self._ranks].T
        return [Proposal(tuple(one), parents=self._parents) for one in tokens.tolist()]

    def memory(self) -> list[MemoryRow]:
        """Weights of the heads, and the tree that they guess."""
        told = f"a tree of {len(self.tree.nodes)} guesses, {self.tree.depth} deep"
        return [MemoryRow(what=row.what, bytes=row.bytes, note=told) for row in super().memory()]
