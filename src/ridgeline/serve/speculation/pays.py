"""Whether guessing pays, by the clock: seconds per token with drafts against without.

Both are measured on the running engine, apart for each size of batch (speculation that pays for one
sequence rarely does for sixty, where checking drafts is no longer free). A trial of plain steps is
followed by one with drafts; where these are not faster they stop, and are tried again after a pause
that doubles. Times are passed in; nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL_STEPS = 8
WARM_UP_STEPS = 2
"""Steps of each trial that are not counted: shapes are new, caches cold."""
SMOOTHING = 32
"""Steps that an average looks back on."""
PLAIN_EVERY = 64
"""While drafts pay, one step in so many goes without, to know what that would cost now."""
WORTH = 1.05
"""Speed-up that a new trial must show; once on, 1 is enough."""
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 640.0


@dataclass(slots=True)
class Average:
    """Seconds and tokens of the last steps of one kind."""

    steps: int = 0
    seconds: float = 0.0
    tokens: float = 0.0

    @property
    def known(self) -> bool:
        """Whether a trial's worth of steps is in it."""
        return self.steps >= TRIAL_STEPS + WARM_UP_STEPS

    @property
    def seconds_per_token(self) -> float:
        """The mean over the steps looked back on."""
        return self.seconds / self.tokens

    def add(self, seconds: float, tokens: int) -> None:
        """Take in one more step."""
        self.steps += 1
        if self.steps <= WARM_UP_STEPS:
            return
        keep = 1.0 - 1.0 / min(self.steps - WARM_UP_STEPS, SMOOTHING)
        self.seconds = keep * self.seconds + seconds
        self.tokens = keep * self.tokens + tokens


@dataclass(slots=True)
class _Size:
    """What is known of batches of about one size."""

    plain: Average = field(default_factory=Average)
    drafted: Average = field(default_factory=Average)
    off_until: float | None = None
    """When drafts are tried again; None: they are tried, or pay."""
    pause: float = FIRST_PAUSE_SECONDS
    proven: bool = False
    """The trial is over, and drafts paid."""
    turn: int = 0


class Pays:
    """Decides for each step of decodes whether it is to have drafts.

    Args:
        always: Draft whatever the clock says.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._sizes: dict[int, _Size] = {}
        self._last: int | None = None

    @property
    def speculating(self) -> bool:
        """Whether drafts were in use for batches of the last size asked about."""
        size = self._sizes.get(self._last or 0)
        return self._always or (size is not None and size.off_until is None)

    def speedup(self, num_sequences: int) -> float | None:
        """Tokens per second with drafts over those without; None: not measured yet."""
        size = self._size(num_sequences)
        if not (size.plain.known and size.drafted.known):
            return None
        return size.plain.seconds_per_token / size.drafted.seconds_per_token

    def wants(self, num_sequences: int, now: float) -> bool:
        """Whether the coming step of so many decodes should have drafts."""
        self._last = num_sequences.bit_length()
        if self._always:
            return True
        size = self._size(num_sequences)
        if not size.plain.known:
            return False
        if size.off_until is not None:
            if now < size.off_until:
                return False
            size.off_until, size.drafted = None, Average()
        if not size.drafted.known:
            return True
        size.turn += 1
        return size.turn % PLAIN_EVERY != 0

    def record(
        self, num_sequences: int, *, seconds: float, tokens: int, drafted: bool, now: float
    ) -> None:
        """Take in a step that decoded only (no prompts in it).

        Args:
            num_sequences: In the step.
            seconds: Of the step, proposing included.
            tokens: That came out.
            drafted: Whether it had drafts.
            now: The clock that `wants` is given.
        """
        size = self._size(num_sequences)
        (size.drafted if drafted else size.plain).add(seconds, tokens)
        gain = self.speedup(num_sequences)
        if self._always or gain is None or size.off_until is not None:
            return
        if gain < (1.0 if size.proven else WORTH):
            size.off_until = now + size.pause
            size.pause = min(2.0 * size.pause, LONGEST_PAUSE_SECONDS)
            size.proven = False
        elif not size.proven:
            size.proven, size.pause = True, FIRST_PAUSE_SECONDS

    def _size(self, num_sequences: int) -> _Size:
        return self._sizes.setdefault(num_sequences.bit_length(), _Size())
