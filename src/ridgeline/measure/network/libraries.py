"""An architecture of timm or torchvision by its name, built without weights."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from torch import nn

from ridgeline.errors import InputError, in_words
from ridgeline.image_files.preprocess import Preprocess
from ridgeline.measure.network import LIBRARIES
from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryModel:
    """A name that a library knows."""

    library: str
    name: str

    def __str__(self) -> str:
        """How the user can write it."""
        return f"{self.library}:{self.name}"

    def build(self, **arguments: Any) -> nn.Module:
        """The architecture with random weights, on the default device.

        Args:
            **arguments: The library's own, such as `img_size`.
        """
        if self.library == "timm":
            built: nn.Module = _timm().create_model(self.name, pretrained=False, **arguments)
            return built
        models = _torchvision_models()
        given: dict[str, Any] = {"weights": None}
        if any(
            self.name in models.list_models(module=one)
            for one in (models.detection, models.segmentation)
        ):
            given["weights_backbone"] = None
        made: nn.Module = models.get_model(self.name, **given, **arguments)
        return made

    def preprocess(self, module: nn.Module) -> Preprocess | None:
        """How its authors make inputs of images; None where the library says it of weights only."""
        if self.library != "timm":
            return None
        said = _timm().data.resolve_model_data_config(module)
        height, width = said["input_size"][1:]
        return Preprocess(
            resize=int(height / float(said.get("crop_pct") or 1.0)),
            crop=(int(height), int(width)),
            interpolation=said["interpolation"],
            mean=tuple(said["mean"]),
            std=tuple(said["std"]),
            origin=f"timm's of {self.name}",
        )


def find_library_model(source: str, option: str = "") -> LibraryModel | None:
    """The model behind `timm:NAME`, `torchvision:NAME`, or a plain name that a library knows.

    Args:
        source: What the user wrote.
        option: What named it, for messages.

    Returns:
        None where a plain name is none of an installed library.

    Raises:
        InputError: The named library is not installed, cannot be imported, or lacks the model.
    """
    library, colon, name = source.rpartition(":")
    what = f"{option} {source}".strip()
    if colon and library not in LIBRARIES:
        raise InputError(f"{what}: {library} is not known; give {': or '.join(LIBRARIES)}:")
    for one in [library] if colon else LIBRARIES:
        if importlib.util.find_spec(one) is None:
            if colon:
                raise InputError(f"{what}: {one} is not installed; run: pip install {one}")
            continue
        try:
            near = _unless_known(one, name)
        except (ImportError, RuntimeError) as error:
            raise InputError(
                f"{what}: {one} cannot be imported ({in_words(error)}); install the torchvision"
                " that belongs to this torch"
            ) from None
        if near is None:
            return LibraryModel(library=one, name=name)
        if colon:
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise InputError(f"{what}: {one} has no model {name!r}{hint}")
    return None


def _unless_known(library: str, name: str) -> list[str] | None:
    """Names like this one that the library has; None where it has the name itself."""
    if library == "timm":
        plain = name.partition(".")[0]
        return None if _timm().is_model(plain) else _timm().list_models(f"*{plain[:8]}*")[:4]
    known = _torchvision_models().list_models()
    return None if name in known else [one for one in known if name[:8] in one][:4]


def _timm() -> Any:
    let_torchvision_import()
    return importlib.import_module("timm")


def _torchvision_models() -> Any:
    let_torchvision_import()
    return importlib.import_module("torchvision").models
