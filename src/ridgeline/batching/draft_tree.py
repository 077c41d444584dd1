"""Guesses branch, so that several candidates for a position are checked in one step.

The drafts of a slice form a tree below its last token, the root: `parents[i]` is the draft that
draft i follows, -1 for the root, and always an earlier one. No parents at all: a chain, each draft
follows the one before. In the model's step the root is query 0 of its sequence and draft i query
i + 1, whose position is the root's and its depth, and whose key lies in slot i + 1 behind the
root's (Cai et al., "Medusa", 2401.10774, section 2.1.2; Miao et al., "SpecInfer", 2305.09781).
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_NODES = 63
"""With the root, as many as a word has bits."""


def depths(parents: Sequence[int]) -> list[int]:
    """How far each draft is from the root.

    >>> depths([-1, -1, 0, 2, 1])
    [1, 1, 2, 3, 2]
    """
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def seen_bits(parents: Sequence[int]) -> list[int]:
    """What each query of the tree sees of it, a bit for each query; the root's comes first.

    >>> [bin(bits) for bits in seen_bits([-1, -1, 0])]
    ['0b1', '0b11', '0b101', '0b1011']
    """
    found = [1]
    for draft, parent in enumerate(parents):
        found.append(found[parent + 1] | 1 << draft + 1)
    return found


def accepted_path(
    drafts: Sequence[int], parents: Sequence[int], picked: Sequence[int]
) -> tuple[int, ...]:
    """The drafts that are what was picked, from the root on.

    Args:
        drafts: Their tokens.
        parents: Of the same drafts.
        picked: The token after each query of the tree.

    >>> accepted_path([5, 6, 7], [-1, -1, 1], [6, 0, 7, 8])
    (1, 2)
    """
    path: list[int] = []
    at = -1
    children = {
        (parent, token): draft
        for draft, (token, parent) in enumerate(zip(drafts, parents, strict=True))
    }
    while (at, picked[at + 1]) in children:
        at = children[at, picked[at + 1]]
        path.append(at)
    return tuple(path)


def no_deeper(
    drafts: Sequence[int], parents: Sequence[int], most: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The drafts and parents of the tree that is left above a depth.

    >>> no_deeper([5, 6, 7, 8], [-1, 0, 1, -1], 1)
    ((5, 8), (-1, -1))
    """
    kept = [draft for draft, depth in enumerate(depths(parents)) if depth <= most]
    places = {-1: -1} | {draft: place for place, draft in enumerate(kept)}
    return tuple(drafts[at] for at in kept), tuple(places[parents[at]] for at in kept)
