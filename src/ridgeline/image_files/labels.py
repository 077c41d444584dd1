"""Labels as people write them, words or numbers, brought to numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def numbered(names: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes where labels were words.

    Numbers stay as they are; words are numbered in alphabetical order.

    >>> numbered(["3", "0", "3"])
    (array([3, 0, 3]), ())
    >>> numbered(["dog", "cat", "dog"])
    (array([1, 0, 1]), ('cat', 'dog'))
    """
    if all(re.fullmatch(r"\d{1,9}", one) for one in names):
        return np.array([int(one) for one in names], dtype=np.int64), ()
    classes = tuple(sorted(set(names)))
    places = {name: place for place, name in enumerate(classes)}
    return np.array([places[name] for name in names], dtype=np.int64), classes
