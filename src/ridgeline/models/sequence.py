"""How long a sequence of a model may be: images fix it, learned positions end it."""

from __future__ import annotations

from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec


def sequence_of(model: ModelSpec, seq: int | None) -> int:
    """Tokens of a sequence to train on: `seq`, or of a model of images what one image has."""
    if seq is not None:
        return check_sequence(model, seq)
    if model.kind == "vision":
        return image_tokens(model)
    raise InputError(f"--seq is missing: say how many tokens of {model.name} a sequence has")


def check_sequence(model: ModelSpec, seq: int) -> int:
    """`seq`, when a model can read a sequence of so many tokens.

    Raises:
        InputError: It is below 1, not what the model's images have, or past its positions.
    """
    if model.kind == "vision" and seq != (tokens := image_tokens(model)):
        raise InputError(
            f"{model.name} reads {tokens} tokens of each image ({model.image_size}² pixels in"
            f" patches of {model.patch_size}², and the class token); leave --seq {seq} out"
        )
    if seq < 1:
        raise InputError(f"--seq {seq}: it must be 1 or more")
    if model.learned_positions and 0 < model.max_positions < seq:
        raise InputError(
            f"{model.name} has learned positions for {model.max_positions} tokens; --seq {seq} is"
            " too long"
        )
    return seq


def image_tokens(model: ModelSpec) -> int:
    """Patches of one image, and the class token.

    >>> from ridgeline.models.presets import preset
    >>> image_tokens(preset("ViT-B/16"))
    197
    """
    return (model.image_size // model.patch_size) ** 2 + 1
