"""What `ridgeline serve` serves: one model, or a file with a table of options for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ridgeline.cli import server_options as naming
from ridgeline.cli.engine_options import engine_config
from ridgeline.errors import InputError
from ridgeline.records.served_models import ModelPipeline, read_served_models

if TYPE_CHECKING:
    from ridgeline.serve.config import EngineConfig
    from ridgeline.serve.http.settings import ServerSettings

_FRONTS = ("name", "share", "chat_template", "reasoning_parser", "tool_call_parser")
"""Keys of a table that are no engine's."""
_FLAGS_OF_SERVE = ("adapters", "longest_match")
"""Options that only this command has, or calls by another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontModel:
    """One model behind the front."""

    names: tuple[str, ...]
    config: EngineConfig
    table: Mapping[str, Any]
    """What a file says of it; empty for a model of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontModels:
    """All models behind the front, and the pipelines of them."""

    models: tuple[FrontModel, ...]
    pipelines: tuple[ModelPipeline, ...] = ()

    @property
    def first(self) -> FrontModel:
        """The one that requests get which name none."""
        return self.models[0]

    def check(self, front: Mapping[str, Any]) -> None:
        """Raise InputError for what is wrong with the settings, before anything is fetched."""
        self.settings({**front, "generation_defaults": False})

    def fetched(self, revision: str | None, *, weights: bool = True) -> FrontModels:
        """The models in folders of this machine, where hub ids were given.

        Args:
            revision: Of the first model.
            weights: Whether engines run here, and not a front alone.

        Raises:
            InputError: The hub has no such model or revision.
        """
        from ridgeline.serve.fetching import with_folders

        first, *others = self.models
        return replace(
            self,
            models=(
                replace(first, config=with_folders(first.config, revision, weights=weights)),
                *others,
            ),
        )

    def settings(self, front: Mapping[str, Any]) -> list[ServerSettings]:
        """The settings of each model; `front` is what the command line says, for all of them."""
        return [_settings(one, front) for one in self.models]


def is_file_of_models(model: str) -> bool:
    """Whether what is to be served is a file with several models."""
    return Path(model).suffix == ".toml"


def refuse_beside_several(**given: bool) -> None:
    """Raise InputError for options that are of one model."""
    for name, is_given in given.items():
        if is_given:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag}: is of one model; leave it out, or serve that model alone")


def served_models(
    model: str,
    options: Mapping[str, Any],
    names: Sequence[str] | None = None,
) -> FrontModels:
    """The model, or the models of a file, each with its share of the memory.

    Args:
        model: A folder, a hub's id, or a file of models.
        options: An engine's, from the command line; tables of a file stand before them.
        names: What the model is called.

    Raises:
        InputError: Something that was given cannot be served.
    """
    if is_file_of_models(model):
        return _of_file(Path(model), options)
    called = naming.names_of(model, names)
    config = _config(model, options)
    return FrontModels(models=(FrontModel(names=called, config=config, table={}),))


def _of_file(path: Path, options: Mapping[str, Any]) -> FrontModels:
    from ridgeline.serve.fetching import with_folders
    from ridgeline.serve.memory_split import split_memory

    given = read_served_models(path)
    configs = []
    for table in given.models:
        own = {key: value for key, value in table.items() if key not in _FRONTS}
        unknown = own.keys() - options.keys() - {"model"}
        if unknown:
            raise InputError(
                f"{path}: model {table['name']}: {min(unknown)} is no option of an engine"
            )
        try:
            configs.append(with_folders(_config(own.pop("model"), {**options, **own})))
        except InputError as error:
            raise InputError(f"{path}: model {table['name']}: {error}") from None
    names = [table["name"] for table in given.models]
    try:
        split = split_memory(configs, [table.get("share") for table in given.models], names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    models = [
        FrontModel(names=(table["name"],), config=config, table=table)
        for table, config in zip(given.models, split, strict=True)
    ]
    return FrontModels(models=tuple(models), pipelines=given.pipelines)


def _config(folder: str, options: Mapping[str, Any]) -> EngineConfig:
    given = {key: value for key, value in options.items() if key not in _FLAGS_OF_SERVE}
    config = engine_config(folder, adapter=options["adapters"], **given)
    if config.speculation is None:
        return config
    speculation = msgspec.structs.replace(
        config.speculation, longest_match=options["longest_match"]
    )
    return msgspec.structs.replace(config, speculation=speculation)


def _settings(model: FrontModel, front: Mapping[str, Any]) -> ServerSettings:
    from ridgeline.checkpoints.generation import read_generation_defaults
    from ridgeline.serve.http.chat_template import read_template
    from ridgeline.serve.http.reasoning import check_parser
    from ridgeline.serve.http.settings import ServerSettings
    from ridgeline.serve.http.tool_families import check_tool_parser

    use_defaults = front["generation_defaults"]
    folder = Path(model.config.model)
    defaults = read_generation_defaults(folder) if use_defaults else {}
    given = {key: value for key, value in front.items() if key != "generation_defaults"}
    given |= {key: value for key, value in model.table.items() if key in _FRONTS[2:]}
    template = given.pop("chat_template")
    return ServerSettings(
        **{
            **given,
            "model_name": model.names[0],
            "other_names": model.names[1:],
            "defaults": defaults,
            "chat_template": None if template is None else read_template(template),
            "reasoning_parser": check_parser(given["reasoning_parser"]),
            "tool_call_parser": check_tool_parser(given["tool_call_parser"]),
        }
    )
