"""Which tree of guesses to check in one step, and how many tokens that yields.

A tree is a set of nodes; a node is the rank of each guess on the way to it, (0, 2) the third guess
of the second head after the first guess of the first. With a[k][r] the chance that the model's
token k + 1 ahead is the r-th guess of head k, taken as independent,

    tokens per round   1 + Σ over nodes  Π a[k][rank k of the node]

since a node's product is the chance that it is accepted, and of a node's children at most one is.
The best tree of n nodes takes the n largest products: a node's is never above its parent's, so they
are a tree (Cai et al., "Medusa", 2401.10774, section 2.3.3). A chain is the tree of first guesses.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

Node = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """A tree of guesses, and what it yields."""

    nodes: tuple[Node, ...]
    """From the likeliest on, each behind its parent."""
    tokens_per_round: float
    """The expected number, the model's own token among them."""
    chain_tokens_per_round: float
    """The same of the chain of first guesses, as deep as all heads reach."""

    @property
    def depth(self) -> int:
        """Guesses on the longest path."""
        return max((len(node) for node in self.nodes), default=0)


def best_draft_tree(accuracies: tuple[tuple[float, ...], ...], num_nodes: int) -> DraftTree:
    """The tree of so many nodes with the most expected tokens.

    >>> best_draft_tree(((0.6, 0.2), (0.5, 0.1)), 3).nodes
    ((0,), (0, 0), (1,))

    Args:
        accuracies: By head, by rank: how often the guess of that rank is the model's token.
        num_nodes: Guesses that are checked in one step.
    """
    _check(accuracies)
    if num_nodes < 1:
        raise ValueError(f"a tree of {num_nodes} nodes guesses nothing")
    nodes: list[Node] = []
    open_nodes: list[tuple[float, Node]] = [
        (-chance, (rank,)) for rank, chance in enumerate(accuracies[0])
    ]
    heapq.heapify(open_nodes)
    while open_nodes and len(nodes) < num_nodes:
        chance, node = heapq.heappop(open_nodes)
        if chance == 0.0:
            break
        nodes.append(node)
        if len(node) < len(accuracies):
            for rank, more in enumerate(accuracies[len(node)]):
                heapq.heappush(open_nodes, (chance * more, (*node, rank)))
    chain = tuple((0,) * depth for depth in range(1, len(accuracies) + 1))
    return DraftTree(
        nodes=tuple(nodes),
        tokens_per_round=expected_tree_tokens(accuracies, tuple(nodes)),
        chain_tokens_per_round=expected_tree_tokens(accuracies, chain),
    )


def tree_speedup(
    accuracies: tuple[tuple[float, ...], ...],
    num_nodes: int,
    *,
    draft_seconds: float,
    target_seconds: float,
    check_factor: float = 1.0,
) -> float:
    """Tokens per second with the best tree of so many nodes, over plain decoding.

    >>> round(tree_speedup(((0.6, 0.2), (0.5,)), 3, draft_seconds=1e-3, target_seconds=20e-3), 2)
    2.0

    Args:
        accuracies: By head, by rank: how often the guess of that rank is the model's token.
        num_nodes: Guesses that are checked in one step.
        draft_seconds: To guess a whole tree, all its heads together.
        target_seconds: Of a plain step.
        check_factor: The time of a step that checks the tree over that of a plain one; 1 while
            decoding is memory-bound.
    """
    if not (draft_seconds >= 0.0 and target_seconds > 0.0 and check_factor > 0.0):
        raise ValueError("times and factors must be above 0")
    tokens = best_draft_tree(accuracies, num_nodes).tokens_per_round
    return tokens * target_seconds / (draft_seconds + check_factor * target_seconds)


def expected_tree_tokens(
    accuracies: tuple[tuple[float, ...], ...], nodes: tuple[Node, ...]
) -> float:
    """Tokens that one round of checking a tree yields.

    >>> round(expected_tree_tokens(((0.8,),) * 5, tuple((0,) * n for n in range(1, 6))), 3)
    3.689
    """
    _check(accuracies)
    total = 1.0
    for node in nodes:
        chance = 1.0
        for depth, rank in enumerate(node):
            chance *= accuracies[depth][rank]
        total += chance
    return total


def accuracies_of(text: str) -> tuple[tuple[float, ...], ...]:
    """Accuracies as people write them: heads apart by commas, ranks by x.

    >>> accuracies_of("0.6x0.15,0.4")
    ((0.6, 0.15), (0.4,))
    """
    try:
        found = tuple(
            tuple(float(rank) for rank in head.split("x")) for head in text.strip().split(",")
        )
    except ValueError:
        raise ValueError("give numbers as 0.6x0.15x0.08,0.4x0.12: ranks by x, heads by ,") from None
    _check(found)
    return found


def _check(accuracies: tuple[tuple[float, ...], ...]) -> None:
    if not accuracies or not all(accuracies):
        raise ValueError("accuracies of no head, or of a head without guesses")
    for ranks in accuracies:
        if not (min(ranks) >= 0.0 and sum(ranks) <= 1.0 + 1e-6):
            raise ValueError(f"accuracies of one head add up to at most 1: {ranks}")
