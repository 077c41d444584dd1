"""A bound on how long a completion thinks: when it is reached, the closing mark comes next.

Marks are single tokens (`<think>`, `</think>`). The tokens between them count, those of the marks
do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.serve.messages import ThoughtBudget


class ThoughtCount:
    """The tokens of thought that a completion has so far.

    >>> count = ThoughtCount(ThoughtBudget(most=2, open=8, close=9, inside=False))
    >>> count.is_spent((8, 1)), count.is_spent((8, 1, 1)), count.is_spent((8, 1, 1, 9))
    (False, True, False)
    """

    def __init__(self, budget: ThoughtBudget) -> None:
        self.budget = budget
        self._inside = budget.inside
        self._num = 0

    def add(self, token: int) -> None:
        """The completion goes on with this token."""
        self._inside, self._num = self._after((token,))

    def is_spent(self, drafts: tuple[int, ...]) -> bool:
        """Whether the closing mark must follow the completion with these drafts."""
        inside, num = self._after(drafts)
        return inside and num >= self.budget.most

    def _after(self, tokens: Iterable[int]) -> tuple[bool, int]:
        inside, num = self._inside, self._num
        for token in tokens:
            if token == self.budget.close:
                inside = False
            elif inside:
                num += 1
            else:
                inside = token == self.budget.open
        return inside, num
