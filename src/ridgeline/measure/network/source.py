"""One door for "which vision model?": a preset, a library's or script's model, an exported program.

A preset needs no torch; everything else is built and counted here. See `build.py` for the spellings
and `exported.py` for `.pt2` files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, MissingExtra, NotCounted
from ridgeline.measure.network import LIBRARIES
from ridgeline.models.presets import known_presets
from ridgeline.models.vision.folder import is_image_folder
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.presets import find_name, load_network

if TYPE_CHECKING:
    from ridgeline.measure.network.example import ExampleInputs

COLOURS = 3
TAKES_INPUTS = "only a model that is built takes it, as script.py:NAME or torchvision:NAME"
OF_OTHER_INPUTS = (
    "what takes no single image (video, stereo, points, cameras) needs a sample of each argument:"
    " --inputs FILE.npz"
)
PREFIXES = (*(f"{one}:" for one in LIBRARIES), "hf:")


def read_network(
    source: str, image_size: tuple[int, int] | None = None, inputs: Path | None = None
) -> VisionNetwork:
    """The vision network that `source` names, for images of `image_size` (default: its own).

    `inputs` is a file with a sample of each argument of its forward, in place of an image.

    A plain name is a preset first; `timm:NAME` is built by timm, or a preset where it is missing.

    >>> read_network("resnet50").parameters
    25557032
    """
    may_run = is_of_script(source) or is_image_folder(Path(source.removeprefix("hf:")))
    if inputs is not None and (not is_module(source) or source.endswith(".pt2")):
        raise InputError(f"--inputs {inputs}: {TAKES_INPUTS}")
    library = source.partition(":")[0]
    is_absent = library in LIBRARIES and importlib.util.find_spec(library) is None
    may_be_preset = inputs is None and (is_absent or not is_module(source))
    if may_be_preset and not Path(source).exists() and find_name(source) is not None:
        return load_network(source, image_size)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "train")
    if source.endswith(".pt2"):
        from ridgeline.measure.network.exported import count_exported

        return count_exported(Path(source), image_size)
    from ridgeline.measure.network.example import read_example

    example = None if inputs is None else read_example(inputs)
    try:
        return _counted(source, image_size, example, "meta")
    except InputError as error:
        if not may_run or isinstance(error.__cause__, ImportError):
            raise
        # Grids in lists, constants made on the CPU, numbers read out of buffers: it needs to run.
        return _counted(source, image_size, example, "cpu")


def _counted(
    source: str, image_size: tuple[int, int] | None, example: ExampleInputs | None, device: str
) -> VisionNetwork:
    """The network as it is counted where its parameters shall lie."""
    from ridgeline.measure.network.build import build_module
    from ridgeline.measure.network.count import count_module
    from ridgeline.measure.network.example import image_example

    built = build_module(source, image_size, device=device)
    size = image_size or (built.image_size if example is None else example.image_size)

    def count(channels: int) -> VisionNetwork:
        given = example
        if given is None and built.frames is not None:
            given = image_example(size, channels, built.frames)
        return count_module(built.module, size, name=built.name, channels=channels, inputs=given)

    try:
        return count(built.channels)
    except InputError as error:
        # The first convolution may stand behind a rearrangement of pixels, and take more than
        # colours.
        if built.channels != COLOURS:
            with contextlib.suppress(InputError):
                return count(COLOURS)
        if example is None and not isinstance(error, NotCounted):
            raise InputError(f"{error}; {OF_OTHER_INPUTS}") from error
        raise


def is_of_script(source: str) -> bool:
    """Whether `source` names a thing of a Python file, or the file."""
    return ".py:" in source or source.endswith(".py")


def is_vision(source: str) -> bool:
    """Whether `source` names a vision network, and no preset of a language model."""
    if is_module(source):
        return True
    if os.sep in source or Path(source).exists() or known_presets().names.get(source) is not None:
        return False
    return find_name(source) is not None


def is_module(source: str) -> bool:
    """Whether it can be nothing but a module that has to be built.

    >>> is_module("net.py:Net"), is_module("timm:resnet50"), is_module("resnet50")
    (True, True, False)
    """
    told = source.startswith(PREFIXES) or ".py:" in source or source.endswith(".pt2")
    return told or is_image_folder(Path(source))


def read_image_size(text: str | None) -> tuple[int, int] | None:
    """Height and width from `224` or `480x640`.

    >>> read_image_size("480x640"), read_image_size("224"), read_image_size(None)
    ((480, 640), (224, 224), None)
    """
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(one.isdigit() for one in sides) or not math.prod(map(int, sides)):
        raise InputError(f"--image {text}: give a side as 224, or height and width as 480x640")
    return int(sides[0]), int(sides[-1])
