"""How much of prompts goes beside answers that are being written, so that steps keep a time.

A step takes what its decodes take, and a little for each token of a prompt. Both are measured as
steps go by: the middle of the last steps without prompts, and of the time a token that those with
prompts took beyond it. What is left of the target says how many tokens fit.
"""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST_TOKENS = 16
"""Prompts go on, however long steps take."""
FIRST_TOKENS = 64
"""The tokens of a chunk before anything is known."""
REMEMBERED_STEPS = 32


class StepPace:
    """The prompt tokens of a step beside decodes, from the times of the last ones."""

    def __init__(self, target_seconds: float, most_tokens: int) -> None:
        self._target_seconds = target_seconds
        self._most_tokens = most_tokens
        self._decoding: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """Seconds of steps without prompts."""
        self._token: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """Seconds that a token of a prompt took, of steps with some."""

    def note(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        """Take in how long a step took."""
        if not prompt_tokens:
            self._decoding.append(seconds)
            return
        base = median(self._decoding) if self._decoding and decodes else 0.0
        self._token.append(max(seconds - base, 0.0) / prompt_tokens)

    @property
    def tokens(self) -> int:
        """Prompt tokens that fit beside decodes."""
        if not self._token:
            return min(FIRST_TOKENS, self._most_tokens)
        left = self._target_seconds - (median(self._decoding) if self._decoding else 0.0)
        a_token = median(self._token)
        fitting = self._most_tokens if a_token == 0.0 else int(max(left, 0.0) / a_token)
        return min(max(fitting, LEAST_TOKENS), self._most_tokens)
