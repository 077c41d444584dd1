"""What a recipe says of failures: how often the run is saved, and what it does when one comes."""

from __future__ import annotations

from ridgeline.records.recipe_section import Section


class RecipeCheckpoint(Section, frozen=True, kw_only=True):
    """How often the whole state of the run is saved, and what is kept."""

    every_steps: int | None = None
    """Optimizer steps between checkpoints."""
    every_seconds: float | None = None
    """The time between checkpoints. With neither, it follows from what a save costs and how often
    the run fails (Young and Daly), at most half an hour; the first is made after the first step."""
    mean_seconds_between_failures: float | None = None
    """Mean time between failures of the whole run; without it, 5.8 years over the number of devices
    (Llama 3, arXiv 2407.21783, section 3.3.4)."""
    keep: int = 2
    """The newest so many stay; 0: no checkpoints are made."""
    keep_every: int = 0
    """One checkpoint in so many stays for good; 0: none does."""


class RecipeSurvive(Section, frozen=True, kw_only=True):
    """What a run does when something fails."""

    max_restarts: int = 3
    """Starts of all ranks from the last checkpoint after a rank died or hung; then the run ends."""
    allow_shrink: bool = False
    """Go on with fewer data-parallel ranks while a node is away; the batch stays as it is."""
    hang_seconds: float = 600.0
    """No rank moves for so long: the run hangs, is ended and starts again; 0: nobody watches.
    Longer than the longest save takes."""
    grace_seconds: float = 30.0
    """After SIGTERM or Ctrl-C, for the step under way and a checkpoint; then ranks are killed."""
    spike_deviations: float = 0.0
    """A loss so many standard deviations above the mean of the last 100 steps is rolled back and
    its batch skipped; 0: only a loss or gradient that is no number."""
    max_rollbacks: int = 3
    """Then the run ends; 0: nothing is rolled back."""
