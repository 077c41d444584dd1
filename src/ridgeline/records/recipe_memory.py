"""What a recipe gives up for memory, and which of that goes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ridgeline.errors import InputError
from ridgeline.records.recipe_section import Section

if TYPE_CHECKING:
    from ridgeline.models import ModelSpec
    from ridgeline.records.recipe import Recipe


class RecipeMemory(Section, frozen=True, kw_only=True):
    """What is given up for memory, beyond `layout.recompute` and `layout.offload`."""

    activation_budget_bytes: float | None = None
    """Recompute as few layers as keep a rank's activations below this; overrides
    `layout.recompute`."""
    recompute_every: int = 1
    """With `layout.recompute`, only each so-manieth block recomputes, so that 2 trades half the
    memory for half the work."""
    recompute_runs: Literal["blocks", "sqrt"] = "blocks"
    """With `layout.recompute = "full"`: `blocks` keeps the input of each block; `sqrt` that of each
    of √L runs of √L blocks, which are recomputed together (Chen et al., arXiv 1604.06174)."""
    offload_activations: bool = False
    """Keep what backward needs in host memory."""
    offload_path: str = ""
    """With `layout.offload = "optimizer-on-disk"`, an existing folder on the disk that takes the
    optimizer's state: each rank has a file there without a name, which ends with it."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        del model
        layout = recipe.layout
        self._check_disk(recipe)
        if self.recompute_every < 1:
            raise InputError(
                f"recipe: memory.recompute_every is {self.recompute_every}; it must be 1 or more"
            )
        chosen = self.recompute_every > 1 or self.recompute_runs == "sqrt"
        if chosen and layout.recompute == "none":
            raise InputError(
                "recipe: memory says which blocks recompute, and layout.recompute is none; set it"
                " to full, or leave recompute_every and recompute_runs out"
            )
        if chosen and self.activation_budget_bytes:
            raise InputError(
                "recipe: memory.activation_budget_bytes chooses the blocks that recompute; leave"
                " recompute_every and recompute_runs out"
            )
        if self.recompute_runs == "blocks":
            return
        if layout.recompute != "full" or self.recompute_every > 1 or layout.zero == 3:
            raise InputError(
                'recipe: memory.recompute_runs "sqrt" recomputes whole runs of blocks: it goes with'
                ' layout.recompute "full", with recompute_every 1 and with layout.zero below 3,'
                " which gathers weights block by block"
            )

    def _check_disk(self, recipe: Recipe) -> None:
        if recipe.layout.offload == "all-on-disk":
            raise InputError(
                'recipe: layout.offload "all-on-disk": `ridgeline train` keeps the optimizer\'s'
                ' state on disk ("optimizer-on-disk"), and parameters and gradients in memory;'
                " `ridgeline plan training --offload all-on-disk` writes what DeepSpeed runs"
            )
        on_disk = recipe.layout.offload == "optimizer-on-disk"
        if self.offload_path and not on_disk:
            raise InputError(
                'recipe: memory.offload_path goes with layout.offload "optimizer-on-disk"; set'
                " that, or leave the path out"
            )
        if not on_disk:
            return
        if not self.offload_path:
            raise InputError(
                'recipe: layout.offload "optimizer-on-disk" wants memory.offload_path, a folder on'
                " a fast local disk"
            )
        if recipe.optimizer.name in ("adamw8bit", "adafactor"):
            raise InputError(
                f"recipe: the state of optimizer.name {recipe.optimizer.name!r} is small and stays"
                ' in memory; set layout.offload to "none", or optimizer.name to adamw'
            )
