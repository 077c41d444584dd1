"""The trained network's parts, from `driving.safetensors`, each made anew at each call."""

import pathlib

from safetensors.torch import load_file

from driving.birds_eye import BirdsEyeView
from driving.network import DepthHead, Encoder, ObjectHead, RoadHead

WEIGHTS = pathlib.Path(__file__).parents[1] / "driving.safetensors"
"""Half precision on disk; modules compute in float32."""


def load_encoder():
    """An encoder of its own."""
    return _filled(Encoder(), "encoder.")


def load_view():
    """The lift and splat with its depth head."""
    return _filled(BirdsEyeView(DepthHead()), "view.")


def load_object_head():
    """The object detector's head."""
    return _filled(ObjectHead(), "object_head.")


def load_road_head():
    """The road's head."""
    return _filled(RoadHead(), "road_head.")


def _filled(module, prefix):
    weights = load_file(WEIGHTS)
    own = {name.removeprefix(prefix): v for name, v in weights.items() if name.startswith(prefix)}
    module.load_state_dict(own)
    return module.eval()
