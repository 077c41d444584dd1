"""A chain of compressions as TOML: each stage goes on with what the one above it made.

A stage compresses (`scheme`, as `ridgeline compress` takes it) or trains (`recipe`, tables as
`ridgeline train` takes them: distillation, rounding, an adapter). Tables of the chain's own
`[recipe]` hold for every stage that trains, and a stage's keys stand before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_toml
from ridgeline.records.mistyped import meant
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import anchored, found_path
from ridgeline.records.recipe_section import Section
from ridgeline.records.scheme import Scheme
from ridgeline.records.scheme_names import parse

GIVEN = "given"
"""The name of the model that a chain begins with, where a stage asks for a teacher."""
Tables = dict[str, dict[str, Any]]


class ChainStage(Section, frozen=True, kw_only=True):
    """One stage of a chain; it has either `scheme` or `recipe`."""

    name: str
    """The row's name in the ledger; small letters, digits and dashes."""
    scheme: str = ""
    """One scheme, as `ridgeline compress --scheme` takes it."""
    recipe: Tables | None = None
    """Tables of a recipe, without `[model]` where it trains what the stage above made. A teacher
    may be `given` or the name of a stage above; without one, it is the model as given."""
    max_loss: str = ""
    """The chain ends here where this stage's model lost more, against the model as given: `ppl+5%`
    or `kl+0.05`."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name) or self.name == GIVEN:
            raise InputError(
                f"stages: name {self.name!r}: give small letters, digits and dashes, and not"
                f" {GIVEN!r}, which is the model that the chain begins with"
            )
        if bool(self.scheme) == (self.recipe is not None):
            raise InputError(
                f"stage {self.name}: wants one of scheme (to compress) and recipe (to train)"
            )


class CompressionChain(Section, frozen=True, kw_only=True):
    """A whole chain file."""

    model: str
    """Directory of the causal language model that it begins with."""
    text: str
    """Held-out text on which every stage is judged."""
    calibration: str = ""
    """Text that shows schemes what flows through the model."""
    context: int | None = None
    """Tokens of a judged window; without it 2,048, or the model's positions."""
    stride: int | None = None
    """Tokens from window to window; without it, as `context`."""
    recipe: Tables = msgspec.field(default_factory=dict)
    """Tables that all stages share which train."""
    stages: tuple[ChainStage, ...]

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names:
            raise InputError("stages: there is none; give a [[stages]] table for each")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"stages: two are named {twice}; give each a name of its own")
        quantised = ""
        for stage in self.stages:
            if quantised:
                raise InputError(
                    f"stage {stage.name}: comes after {quantised}, and quantised weights are"
                    " changed no more; put it before"
                )
            scheme = scheme_of(stage)
            if scheme is not None and scheme.needs_calibration and not self.calibration:
                raise InputError(
                    f"stage {stage.name}: {scheme.name} looks at what flows through the model;"
                    " give calibration, a text like that which the model will see"
                )
            quantised = stage.name if scheme is not None and scheme.weights is not None else ""


def scheme_of(stage: ChainStage) -> Scheme | None:
    """The scheme of a stage that compresses.

    Raises:
        InputError: There is no such scheme, or it is for image models.
    """
    if not stage.scheme:
        return None
    try:
        scheme = parse(stage.scheme)
    except InputError as error:
        raise InputError(f"stage {stage.name}: {error}") from None
    if scheme.images:
        raise InputError(f"stage {stage.name}: {scheme.name} is for image models")
    return scheme


def read_chain(path: Path) -> CompressionChain:
    """Read a chain; its relative paths are looked for beside the file, then from where we are.

    Raises:
        InputError: It cannot be read; the line names the file, the stage and the key.
    """
    chain = read_toml(path, CompressionChain)
    folder = path.parent
    chain = msgspec.structs.replace(
        chain,
        model=found_path(chain.model, folder),
        text=found_path(chain.text, folder),
        calibration=found_path(chain.calibration, folder),
    )
    try:
        models = {GIVEN: Path(chain.model)}
        for stage in chain.stages:
            if stage.recipe is not None:
                recipe_of(chain, stage, models, folder)
            models[stage.name] = Path(chain.model)  # stands in for what is not made yet
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return chain


def recipe_of(
    chain: CompressionChain, stage: ChainStage, models: Mapping[str, Path], folder: Path
) -> Recipe:
    """The whole recipe of a stage that trains.

    Args:
        chain: Its shared tables come first.
        stage: With a `recipe`.
        models: The directories of the models so far, by the names of their stages, in their order;
            `given` is the first.
        folder: Of the chain's file, for relative paths.

    Raises:
        InputError: The tables together are no recipe of a language model.
    """
    assert stage.recipe is not None
    tables = _joined(chain.recipe, stage.recipe)
    above = str(list(models.values())[-1])
    if not {"config", "checkpoint"} & set(tables.get("model", {})):
        tables["model"] = {"config": above, "checkpoint": above, **tables.get("model", {})}
    if "images" in tables:
        raise InputError(f"stage {stage.name}: [images]: a chain is of language models")
    if "data" in tables:
        tables["data"].setdefault("tokenizer", str(models[GIVEN]))
    if "distillation" in tables:
        _name_teachers(tables["distillation"], models)
    try:
        return anchored(msgspec.convert(tables, type=Recipe), folder)
    except (msgspec.ValidationError, InputError) as error:
        said = f"{in_words(error)}{meant(error, Recipe)}"
        raise InputError(f"stage {stage.name}: recipe: {said}") from None


def _joined(shared: Tables, own: Tables) -> Tables:
    names = [*shared, *(name for name in own if name not in shared)]
    return {name: {**shared.get(name, {}), **own.get(name, {})} for name in names}


def _name_teachers(table: dict[str, Any], models: Mapping[str, Path]) -> None:
    """A teacher that is a stage's name becomes its directory."""
    stages = table.get("stages", [])
    if not stages:
        table.setdefault("teacher", GIVEN)
    # A copy: the shared tables are those of every stage.
    table["stages"] = [dict(one) for one in stages if isinstance(one, dict)]
    for one in (table, *table["stages"]):
        wanted = one.get("teacher")
        if isinstance(wanted, str) and wanted in models:
            one["teacher"] = str(models[wanted])


def later_schemes(chain: CompressionChain, after: str) -> list[Scheme]:
    """The schemes by which a model will be rounded after a stage, in training too."""
    names = [stage.name for stage in chain.stages]
    found = []
    for stage in chain.stages[names.index(after) + 1 :]:
        rounding = _joined(chain.recipe, stage.recipe or {}).get("quantisation", {}).get("scheme")
        if stage.recipe is not None and rounding:
            found.append(parse(rounding))
        scheme = scheme_of(stage)
        if scheme is not None:
            found.append(scheme)
    return found
