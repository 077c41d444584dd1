"""What all tables of a recipe have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from ridgeline.models import ModelSpec
    from ridgeline.records.recipe import Recipe


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file: a mistyped key is an error that names it."""

    known_to_theory: ClassVar[bool] = True
    """Whether the cost model counts what the table asks for: FLOPs and memory."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Refuse what does not go with the rest of the recipe, or with the model.

        Raises:
            InputError: The first thing that does not fit, and what would.
        """

    def check_for_images(self, recipe: Recipe) -> None:
        """Refuse what does not go with the rest of an image classifier's recipe.

        Raises:
            InputError: The first thing that does not fit, and what would.
        """
