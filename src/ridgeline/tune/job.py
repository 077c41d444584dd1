"""What to tune and within which limits, and what of the budget the last proof is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.techniques import technique
from ridgeline.tune.billing import UNPRICED, RunTerms
from ridgeline.tune.paced import paced_seconds

_ENDING_SHARE, _LEAST_ENDING_SECONDS, _MOST_ENDING_SECONDS = 0.12, 4.0, 20.0
"""What the last proof and the writing may take of the budget; as much again for a patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """What to tune and within which limits."""

    command: list[str]
    out: Path = Path("ridgeline-tune")
    """Folder for ledger.json, stack.toml, report.html, tuned.patch; made when missing."""
    budget_seconds: float = 900.0
    """Wall time for everything, from the first profile to the last proof."""
    threshold: float = 0.01
    """A technique is kept when it is faster by more than this beyond doubt (0.01: 1 %)."""
    only: tuple[str, ...] = ()
    """Try only these techniques; empty: all that apply."""
    patch: bool = False
    """Also write the stack as a diff of the script, proved like a technique."""
    terms: RunTerms = UNPRICED
    """Length and price of the whole run, for the ledger's bill."""
    period_seconds: float | None = None
    """From one frame to the next: the end result is also called at that pace."""

    def __post_init__(self) -> None:
        if self.period_seconds is not None and not self.period_seconds > 0:
            raise InputError(f"--period must be above 0 seconds, is {self.period_seconds:g}")
        if not self.budget_seconds > 0:
            raise InputError(f"--budget must be above 0 seconds, is {self.budget_seconds:g}")
        if not 0 <= self.threshold < 1:
            raise InputError(f"--threshold must be in [0, 1), is {self.threshold:g}")
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out}: is a file; give a folder")
        for name in self.only:
            technique(name)

    @property
    def ending_seconds(self) -> float:
        """What is kept back of the budget for what comes after the last question."""
        ending = min(_ENDING_SHARE * self.budget_seconds, _MOST_ENDING_SECONDS)
        # The page alone takes a second or two to write; a tiny budget is not all for that.
        ending = max(ending, min(_LEAST_ENDING_SECONDS, 0.25 * self.budget_seconds))
        ending = 2 * ending if self.patch else ending
        return ending + self.paced_seconds

    @property
    def paced_seconds(self) -> float:
        """What calls at the period may take."""
        return 0.0 if self.period_seconds is None else paced_seconds(self.budget_seconds)
