"""Speculative decoding in a simulation, as what it comes to: a chain or a tree of guesses.

A guess stands for its rank among the guesses for its place, and the model's own token for the rank
of the guess that is right, drawn by how often each is. So a round accepts what
`cost/serving/draft_trees.py` expects on average, less what budget and lengths cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from ridgeline.batching.draft_tree import MOST_NODES, depths
from ridgeline.batching.sequence import Sequence, Slice
from ridgeline.cost.serving.draft_trees import (
    Node,
    accuracies_of,
    best_draft_tree,
    expected_tree_tokens,
)
from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Which guesses are made for every sequence, and how often each is right."""

    accuracies: tuple[tuple[float, ...], ...]
    """By place, by rank: how often the guess of that rank is the model's token."""
    nodes: tuple[Node, ...] = ()
    """The tree of guesses, as ranks; none: a chain of first guesses."""
    cost: float
    """Time of guessing one place for all, over that of a step without drafts."""
    seed: int = 0

    @property
    def num_drafts(self) -> int:
        """Guesses of a sequence that a step checks."""
        return len(self.nodes) or len(self.accuracies)

    @property
    def depth(self) -> int:
        """Places that are guessed, one behind the other."""
        return max(map(len, self.nodes), default=len(self.accuracies))

    @property
    def tokens_per_round(self) -> float:
        """Tokens of a sequence that a step yields, mean.

        >>> round(drafting_of(drafts=5, acceptance=0.8).tokens_per_round, 3)
        3.689
        """
        chain = tuple((0,) * depth for depth in range(1, len(self.accuracies) + 1))
        return expected_tree_tokens(self.accuracies, self.nodes or chain)

    @property
    def options(self) -> dict[str, Any]:
        """The fields of a `Deployment` that say the same."""
        if not self.nodes:
            chance = self.accuracies[0][0]
            return {"drafts": self.num_drafts, "acceptance": chance, "draft_cost": self.cost}
        ranks = ",".join("x".join(map(repr, head)) for head in self.accuracies)
        return {"draft_tree": self.num_drafts, "accuracies": ranks, "draft_cost": self.cost}

    def give(self, sequence: Sequence) -> None:
        """Guess what follows a sequence."""
        if not self.nodes:
            sequence.drafts = [0] * len(self.accuracies)
            return
        places = {node: place for place, node in enumerate(self.nodes)}
        sequence.drafts = [node[-1] for node in self.nodes]
        sequence.parents = tuple(places.get(node[:-1], -1) for node in self.nodes)

    def accepted(self, one: Slice, random: Random) -> int:
        """Guesses of a slice that are right, drawn."""
        parents = one.parents or range(-1, len(one.drafts) - 1)
        children = {
            (parent, rank): draft
            for draft, (parent, rank) in enumerate(zip(parents, one.drafts, strict=True))
        }
        inner = set(parents)
        at: int | None = -1
        count = 0
        while at in inner:
            at = children.get((at, self._rank(count, random.random())))
            count += at is not None
        return count

    @staticmethod
    def places(one: Slice) -> int:
        """Places that are guessed for a slice, one behind the other."""
        return max(depths(one.parents), default=0) if one.parents else len(one.drafts)

    def _rank(self, place: int, number: float) -> int:
        """The rank that is right, by a number in [0, 1); beyond all: none is."""
        ranks = self.accuracies[place]
        for rank, chance in enumerate(ranks):
            if number < chance:
                return rank
            number -= chance
        return len(ranks)


COST = 0.05
"""Time of guessing one place for all over that of a step, where nobody says it."""


def drafting_of(
    *,
    drafts: int = 0,
    acceptance: float = 0.7,
    draft_tree: int = 0,
    accuracies: str = "",
    cost: float = COST,
    seed: int = 0,
) -> Drafting | None:
    """What the options of a deployment say; None: nobody guesses.

    Raises:
        InputError: They do not go together, or the accuracies are none.
    """
    for name, count in (("drafts", drafts), ("draft-tree", draft_tree)):
        if count < 0:
            raise InputError(f"--{name} {count}: has to be 0 or more")
    if not 0.0 <= acceptance <= 1.0:
        raise InputError(f"--acceptance {acceptance:g}: has to lie between 0 and 1")
    if not 0.0 <= cost < float("inf"):
        raise InputError(f"--draft-cost {cost}: has to be 0 or more")
    if not draft_tree:
        if accuracies:
            raise InputError(f"--accuracies {accuracies}: say --draft-tree N, its guesses")
        chain = ((acceptance,),) * drafts
        return Drafting(accuracies=chain, cost=cost, seed=seed) if drafts else None
    if drafts:
        raise InputError(f"--draft-tree {draft_tree}: --drafts {drafts} is of a chain; give one")
    ranks, nodes = tree_of(draft_tree, accuracies)
    return Drafting(accuracies=ranks, nodes=nodes, cost=cost, seed=seed)


def tree_of(
    draft_tree: int, accuracies: str
) -> tuple[tuple[tuple[float, ...], ...], tuple[Node, ...]]:
    """The accuracies that an option says, and the best tree of so many guesses.

    Raises:
        InputError: There is no such tree, or the accuracies are none.
    """
    if not 1 <= draft_tree <= MOST_NODES:
        raise InputError(f"--draft-tree {draft_tree}: a tree has 1 to {MOST_NODES} guesses")
    if not accuracies:
        raise InputError(
            f"--draft-tree {draft_tree}: say --accuracies, how often each head's first, second, …"
            " guess is right: 0.6x0.15x0.08,0.4x0.12 (held_out_ranks of heads.json)"
        )
    try:
        ranks = accuracies_of(accuracies)
        return ranks, best_draft_tree(ranks, draft_tree).nodes
    except ValueError as error:
        raise InputError(f"--accuracies {accuracies}: {error}") from None
