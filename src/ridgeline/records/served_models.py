"""Several models behind one server, and pipelines of them, as TOML.

[[models]]
model = "small"                 # a folder; relative ones are looked for beside the file
share = 0.25                    # of the memory that all of them get; or kv_bytes
weights = "int8"                # and whatever `ridgeline serve` has an option for
[[models]]
model = "large"
[[pipelines]]
name = "draft-then-correct"
[[pipelines.stages]]
model = "small"
max_tokens = 64
[[pipelines.stages]]
model = "large"
prompt = "Question: {request} Correct this answer: {output}"
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_toml
from ridgeline.records.recipe_file import found_path

REQUEST, OUTPUT = "{request}", "{output}"
"""What a stage's prompt may name: the client's text, and what the stage above wrote."""
_PLACE = re.compile(r"\{\w+\}")


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's part in a pipeline."""

    model: str
    """The name of one of the models."""
    prompt: str = OUTPUT
    """What it is asked: text with `{request}` and `{output}`; of the first stage both are the
    client's text."""
    max_tokens: int | None = None
    """The longest answer; None: of the last stage the client's word, else the endpoint's."""
    temperature: float | None = None
    """The stage's own temperature; None: the client's."""

    def text(self, request: str, output: str) -> str:
        """Its prompt for a request; what the client wrote is never read as a place to fill."""
        filled = [part.replace(REQUEST, request) for part in self.prompt.split(OUTPUT)]
        return output.join(filled)


class ModelPipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models that answer one after another, under one name."""

    name: str
    stages: tuple[PipelineStage, ...]


class ServedModels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file of models."""

    models: tuple[dict[str, Any], ...]
    """The tables with `model`, `name`, `share`, and options of `ridgeline serve` by their names."""
    pipelines: tuple[ModelPipeline, ...] = ()


def read_served_models(path: Path) -> ServedModels:
    """Read and check a file of models, with names and folders filled in.

    Raises:
        InputError: It cannot be read, or does not fit together; the line names the place.
    """
    given = read_toml(path, ServedModels)
    models = tuple(_model(path, number, one) for number, one in enumerate(given.models, start=1))
    if not models:
        raise InputError(f"{path}: models: there is none; give a [[models]] table each")
    names = [*(one["name"] for one in models), *(one.name for one in given.pipelines)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: two are called {name}; give each a `name` of its own")
    for pipeline in given.pipelines:
        if not pipeline.stages:
            raise InputError(f"{path}: pipeline {pipeline.name}: has no stages")
        for stage in pipeline.stages:
            if stage.model not in names[: len(models)]:
                raise InputError(
                    f"{path}: pipeline {pipeline.name}: no model {stage.model!r}; there are"
                    f" {', '.join(names[: len(models)])}"
                )
            _check_stage(f"{path}: pipeline {pipeline.name}, stage of {stage.model}", stage)
    shares = sum(one.get("share", 0.0) for one in models)
    if shares > 1.0 + 1e-9:
        raise InputError(f"{path}: the models' shares add up to {shares:g}; give 1 or less")
    return msgspec.structs.replace(given, models=models)


def _check_stage(where: str, stage: PipelineStage) -> None:
    if stage.max_tokens is not None and stage.max_tokens < 1:
        raise InputError(f"{where}: max_tokens is {stage.max_tokens}; it must be 1 or more")
    if stage.temperature is not None and not 0.0 <= stage.temperature <= 2.0:
        raise InputError(f"{where}: temperature is {stage.temperature:g}; give 0 to 2")
    for place in _PLACE.findall(stage.prompt):
        near = difflib.get_close_matches(place, (REQUEST, OUTPUT), n=1, cutoff=0.75)
        if near and place != near[0]:
            raise InputError(
                f"{where}: prompt: {place} is no place to fill; did you mean {near[0]}?"
            )


def _model(path: Path, number: int, given: dict[str, Any]) -> dict[str, Any]:
    where = f"{path}: models, table {number}"
    if not isinstance(given.get("model"), str) or not given["model"]:
        raise InputError(f"{where}: wants model = the folder of a model")
    if "memory_share" in given:
        raise InputError(f"{where}: memory_share is of all models together; give share")
    share = given.get("share", 0.5)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 < share <= 1.0:
        raise InputError(f"{where}: share {share}: give a part of 1")
    folder = found_path(given["model"], path.parent)
    name = given.get("name", Path(folder).name)
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: name: give the model's name in the API")
    return {**given, "model": folder, "name": name}
