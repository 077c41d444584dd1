"""Vision models from where people keep them, each as one module: images to logits or to outputs.

| given as | what runs |
|---|---|
| a Hugging Face directory | transformers' model; no code of the directory |
| `script.py:name` | the user's function or class, called without arguments, in this process |
| `model.pt2` | an exported program, whose batch is free |
| a directory that `ridgeline compress` wrote | what is saved in it: ONNX in ONNX Runtime |
| a name of timm with `--checkpoint FILE` | that architecture with these weights |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ridgeline.checkpoints.files import disk_bytes
from ridgeline.compress.images.outputs import FlatOutputs
from ridgeline.compress.images.quantised import OnnxModule
from ridgeline.compress.images.recognised import ONNX, PROGRAM
from ridgeline.compress.images.saved import load
from ridgeline.errors import InputError, in_words
from ridgeline.image_files.preprocess import Preprocess, read_preprocess
from ridgeline.measure.network.directory import Logits, class_of, load_directory, read_config
from ridgeline.measure.network.example import takes_one_dict
from ridgeline.measure.network.libraries import find_library_model
from ridgeline.measure.network.program import load_program
from ridgeline.measure.network.scripted import model_of, run_script, split_script
from ridgeline.measure.network.weights import load_weights
from ridgeline.models.vision.folder import CLASSIFIER, class_names
from ridgeline.records.input_file import read_json
from ridgeline.records.overwriting import note_input

if TYPE_CHECKING:
    from ridgeline.compress.images.material import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionModel:
    """A model that takes images, and what is known of it."""

    name: str
    """The name that the user gave."""
    module: nn.Module
    """Images [n, channels, height, width] to logits [n, classes], or to a tuple of outputs, in
    evaluation mode."""
    folder: Path | None = None
    """Its directory, if it has one."""
    classifier: Any = None
    """The model of transformers that `module` wraps; None for others."""
    preprocess: Preprocess | Callable[[Any], Any] | None = None
    """What the model's own files or script say of it."""
    labels: dict[str, int] | None = None
    """Names of classes → label, where the model's configuration has them."""
    disk_bytes: int = 0
    computed_with: str = ""
    """The program and number format of its answers."""


def name_arguments(model: VisionModel, images: Images) -> None:
    """Let inputs with names go to the arguments of these names, or into the one dict of forward.

    Raises:
        InputError: Forward has other arguments.
    """
    names = getattr(images.source, "arguments", ())
    if isinstance(model.module, OnnxModule) and set(names) == set(model.module.inputs):
        model.module.inputs = list(names)
    if not names or not isinstance(model.module, FlatOutputs):
        return
    known = inspect.signature(model.module.model.forward).parameters
    gathers = any(one.kind is one.VAR_KEYWORD for one in known.values())
    unknown = [one for one in names if one not in known and not gathers]
    model.module.in_one_dict = takes_one_dict(model.module.model, names)
    if not unknown or model.module.in_one_dict:
        model.module.arguments = tuple(names)
    elif len(names) > 1:
        raise InputError(
            f"{images.name}: forward has no argument {', '.join(unknown)}; it takes"
            f" {', '.join(known)}"
        )


def open_model(
    option: str, model: Path, checkpoint: Path | None = None, device: str = "cpu"
) -> VisionModel:
    """The model behind a name.

    Args:
        option: That named it.
        model: See the table above.
        checkpoint: Weights of a script's model, or of timm's.
        device: Where it shall run.

    Raises:
        InputError: There is none, or it cannot be loaded.
    """
    text = str(model)
    if (script := split_script(text)) is not None:
        found = _from_script(option, text, *script, checkpoint)
    elif checkpoint is not None:
        found = _from_timm(text, checkpoint)
    elif model.suffix == ".pt2":
        found = _from_program(option, model, model)
    elif (model / ONNX).is_file():
        return _open_quantised(model)
    elif (model / PROGRAM).is_file() and not (model / "config.json").is_file():
        found = _from_program(option, model / PROGRAM, model)
    elif not classifies(model):
        found = _from_directory(option, model)
    else:
        classifier = load(option, model)
        found = VisionModel(
            name=text,
            module=Logits(classifier),
            folder=model,
            classifier=classifier,
            preprocess=read_preprocess(model),
            labels=_labels(classifier),
            disk_bytes=disk_bytes(model),
        )
    found.module.to(device)
    dtype = next((str(one.dtype) for one in found.module.parameters()), "torch.float32")
    object.__setattr__(found, "computed_with", f"PyTorch {dtype.removeprefix('torch.')}")
    return found


def _labels(model: Any) -> dict[str, int] | None:
    """The names of the classes of a model of transformers."""
    known = getattr(model.config, "label2id", None)
    return {str(name): int(label) for name, label in known.items()} if known else None


def classifies(folder: Path) -> bool:
    """Whether a directory of transformers names no class, or one that classifies images."""
    names = class_names(folder)  # whoever reads it as a classifier says what is wrong with it
    return not names or any(one.endswith(CLASSIFIER) for one in names)


def _from_directory(option: str, folder: Path) -> VisionModel:
    config = read_config(folder, option, "compress")
    made = load_directory(folder, option, class_of(config), config)
    return VisionModel(
        name=str(folder),
        module=FlatOutputs(made).eval(),
        folder=folder,
        preprocess=read_preprocess(folder),
        labels=_labels(made),
        disk_bytes=disk_bytes(folder),
    )


def _from_script(
    option: str, text: str, path: Path, name: str, checkpoint: Path | None
) -> VisionModel:
    script = run_script(path, option)
    made = model_of(script, name, option)
    if checkpoint is not None:
        load_weights(made, checkpoint, "--checkpoint", text)
    return VisionModel(
        name=text,
        module=FlatOutputs(made.eval()),
        preprocess=getattr(script, "preprocess", None),
        disk_bytes=_bytes(made),
    )


def _from_program(option: str, path: Path, named: Path) -> VisionModel:
    module: nn.Module = load_program(path, option).module()
    return VisionModel(
        name=str(named),
        module=module,
        folder=named if named.is_dir() else None,
        preprocess=saved_preprocess(named) if named.is_dir() else None,
        disk_bytes=path.stat().st_size,
    )


def _from_timm(name: str, checkpoint: Path) -> VisionModel:
    found = find_library_model(f"timm:{name.removeprefix('timm:')}", "MODEL")
    assert found is not None
    try:
        made = found.build()
    except Exception as error:  # whatever timm's builders raise
        raise InputError(f"MODEL {name}: timm says: {in_words(error)}") from None
    load_weights(made, checkpoint, "--checkpoint", name)
    return VisionModel(
        name=name,
        module=FlatOutputs(made.eval()),
        preprocess=found.preprocess(made),
        disk_bytes=checkpoint.stat().st_size,
    )


def _open_quantised(folder: Path) -> VisionModel:
    """The model that `save_quantised` wrote, as ONNX Runtime runs it.

    Raises:
        InputError: It cannot be loaded.
    """
    note_input(folder / ONNX)
    module = OnnxModule(folder / ONNX, torch.get_num_threads())
    return VisionModel(
        name=str(folder),
        module=module.eval(),
        folder=folder,
        preprocess=saved_preprocess(folder),
        disk_bytes=(folder / ONNX).stat().st_size,
        computed_with=f"ONNX Runtime {module.version}",
    )


def saved_preprocess(folder: Path) -> Preprocess | None:
    """What `ridgeline compress` wrote beside a model.

    Raises:
        InputError: The file says something else.
    """
    path = folder / "preprocess.json"
    return read_json(path, Preprocess) if path.is_file() else None


def _bytes(module: nn.Module) -> int:
    """The bytes of a module's tensors, which is what a file of its weights holds."""
    return sum(one.numel() * one.element_size() for one in module.state_dict().values())
