"""How a model's processor prepares an image: the arrays for the tower, the tokens in the prompt.

The arrays are numpy's and the processor is the one on Pillow, so that torchvision is not needed.
Each image is prepared by itself: what a prompt holds of it does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ridgeline.batching.pool import DIGEST_BYTES
from ridgeline.checkpoints.tokenizer import read_tokenizer
from ridgeline.errors import InputError, MissingExtra
from ridgeline.models.folder import read_by_library
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import ImageArray

_FOR_IMAGES_ALONE = {"smolvlm": "Idefics3Processor"}
"""Families whose own processor wants packages for videos, and one that treats images alike."""

_WRITERS = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}
"""Families whose own processor cannot be made without torchvision, which it wants for videos."""


class _Writer:
    """A processor without its part for videos."""

    def __init__(self, kind: Any, image_processor: Any, tokenizer: Any, token_id: int) -> None:
        self._kind = kind
        self.image_processor = image_processor
        self.image_token: str = tokenizer.convert_ids_to_tokens(token_id)
        self.image_token_id = token_id

    def replace_image_token(self, found: Any, index: int) -> str:
        """What stands in a prompt for an image, as the processor itself writes it."""
        text: str = self._kind.replace_image_token(self, found, index)
        return text


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image as a prompt gets it."""

    text: str
    """What stands in the prompt for it: a placeholder for each of its features, marks between."""
    digest: bytes
    arrays: tuple[ImageArray, ...]


class ImageProcessor:
    """The processor of one model, for images."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.token: str = processor.image_token
        """What a chat template writes where an image belongs."""
        self.token_id: int = processor.image_token_id
        """The placeholder's token."""

    def prepare(self, image: Any) -> PreparedImage:
        """Scale, cut and normalise one image, a `PIL.Image` in RGB; whatever it raises is wrong."""
        processor = self._processor
        options = getattr(processor, "images_kwargs", {})
        found = processor.image_processor(images=[image], return_tensors="np", **options)
        arrays = tuple(
            _array(name, found[name])
            for name in processor.image_processor.model_input_names
            if name in found
        )
        text = processor.replace_image_token(found, 0)
        return PreparedImage(text=text, digest=_digest(arrays), arrays=arrays)


def read_image_processor(config: EngineConfig) -> ImageProcessor:
    """Read the processor beside a model.

    Raises:
        InputError: There is none, or it is of a kind that is not understood.
        MissingExtra: Pillow is not installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise MissingExtra("Pillow", "serve") from None
    import transformers

    trusted = config.trust_remote_code
    with read_by_library(config.model, what="its image processor"):
        about = transformers.AutoConfig.from_pretrained(config.model, trust_remote_code=trusted)
        options = {"backend": "pil", "trust_remote_code": trusted}
        writer = _WRITERS.get(about.model_type)
        if writer is not None:
            processor: Any = _Writer(
                getattr(transformers, writer),
                transformers.AutoImageProcessor.from_pretrained(config.model, **options),
                read_tokenizer(config.model, trust_remote_code=trusted),
                about.image_token_id,
            )
        else:
            kind = _FOR_IMAGES_ALONE.get(about.model_type, "AutoProcessor")
            processor = getattr(transformers, kind).from_pretrained(config.model, **options)
    needed = ("image_processor", "image_token", "image_token_id", "replace_image_token")
    missing = [name for name in needed if getattr(processor, name, None) is None]
    if missing:
        raise InputError(
            f"{config.model}: the processor of the family {about.model_type}, a"
            f" {type(processor).__name__}, has no {missing[0]}; images of such models are not read"
        )
    return ImageProcessor(processor)


def _array(name: str, values: Any) -> ImageArray:
    import numpy as np  # a front whose model sees nothing starts without it

    array = np.ascontiguousarray(values)
    return ImageArray(name=name, dtype=array.dtype.str, shape=array.shape, data=array.tobytes())


def _digest(arrays: tuple[ImageArray, ...]) -> bytes:
    """A name for what the tower sees: equal for equal pixels, whatever file they came in."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for one in arrays:
        digest.update(f"{one.name} {one.dtype} {one.shape} ".encode())
        digest.update(one.data)
    return digest.digest()
