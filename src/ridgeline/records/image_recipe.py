"""The `[images]` table of a recipe: what an image classifier is trained on, and how it sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ridgeline.errors import InputError
from ridgeline.records.recipe_section import Section

if TYPE_CHECKING:
    from ridgeline.records.recipe import Recipe

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of each channel of ImageNet's training images, of 1, as torchvision's models have it."""
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


class RecipeImages(Section, frozen=True, kw_only=True):
    """What an image classifier is trained on; in place of `[data]`."""

    path: str
    """A folder of class folders, tar shards such as `train-{000..031}.tar` (WebDataset), an .npz or
    .safetensors file, or a folder with `images.npy` (memory-mapped) and `labels.npy`. Of shards, of
    one file and of a folder with `SHA256SUMS` also the address, `https://…` or `s3://…`."""
    validation: str = ""
    """Held-out images, given as `path` is."""
    holdout: int = 0
    """One image in so many is held out for validation, chosen by a hash of its name; 0: none."""
    cache: str = ""
    """The folder that keeps images from an address; empty: below the user's cache folder."""
    size: int
    """Height and width of what the model sees, in pixels."""
    channels: Literal[1, 3] = 3
    """The number of colours; 1: images are turned grey."""
    classes: int | None = None
    """Classes that the model tells apart; without it, as many as the data has."""
    epochs: float | None = None
    """Times that each image is seen; sets the steps where `run.steps` does not."""
    images: float | None = None
    """Images of the whole run, in place of `epochs`."""
    crop: Literal["random-resized", "padded", "centre"] = "random-resized"
    """The part of an image that training looks at. `random-resized`: of random area and shape
    (Szegedy et al., arXiv 1409.4842, section 6); `padded`: a square of `size` out of the image with
    a black border (He et al., arXiv 1512.03385, section 4.2); `centre`: as in validation."""
    area: tuple[float, float] = (0.08, 1.0)
    """With `random-resized`, the least and largest share of the image's area."""
    shape: tuple[float, float] = (0.75, 4.0 / 3.0)
    """With `random-resized`, the least and largest width over height."""
    padding: int = 4
    """With `padded`, the border's pixels."""
    flip: bool = True
    """Mirror every other image, left to right."""
    centre_share: float = 0.875
    """In validation, the side of the square in the middle over the image's shorter side."""
    mean: tuple[float, ...] = ()
    """Subtracted from each channel (of 1); empty: ImageNet's, of grey images 0.5."""
    deviation: tuple[float, ...] = ()
    """What each channel is divided by; empty: ImageNet's, of grey images 0.5."""
    mixup: float = 0.0
    """Blend two images and their labels by a share from Beta(a, a) (Zhang et al., arXiv
    1710.09412); 0: none."""
    cutmix: float = 0.0
    """Paste a part of one image into another, the share of its area from Beta(a, a) (Yun et al.,
    arXiv 1905.04899); 0: none. With `mixup` too, every other batch."""
    label_smoothing: float = 0.0
    """Share of the label that is spread over all classes (Szegedy et al., arXiv 1512.00567)."""
    shuffle: bool = True
    workers: int = 1
    """Processes of each rank that decode ahead; 0: the training process itself."""
    steps_ahead: int = 2
    """Steps whose images are decoded before they are needed."""
    channels_last: bool = True
    """Keep pixels, and without `layout.zero` weights too, as [height, width, channel] in memory."""
    sync_batch_norm: bool = False
    """Batch norms take the mean over all data-parallel ranks, not over each one's images."""

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and the deviation of each channel."""
        grey = self.channels == 1
        mean = self.mean or ((0.5,) if grey else IMAGENET_MEAN)
        return mean, self.deviation or ((0.5,) if grey else IMAGENET_DEVIATION)

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        del recipe
        if self.size < 1 or self.workers < 0 or self.steps_ahead < 1:
            raise InputError(
                f"recipe: images.size is {self.size}, images.workers {self.workers} and"
                f" images.steps_ahead {self.steps_ahead}; they must be at least 1, 0 and 1"
            )
        if self.epochs is not None and self.images is not None:
            raise InputError("recipe: images.epochs and images.images both say how long; keep one")
        if min(self.epochs or 1.0, self.images or 1.0) <= 0.0:
            raise InputError("recipe: images.epochs and images.images must be above 0")
        self._check_crop()
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if values and len(values) != self.channels:
                raise InputError(
                    f"recipe: images.{name} has {len(values)} numbers and images.channels is"
                    f" {self.channels}; give one for each channel"
                )
        if self.deviation and min(self.deviation) <= 0.0:
            raise InputError("recipe: images.deviation must be above 0 in each channel")
        if not 0.0 <= self.label_smoothing < 1.0 or min(self.mixup, self.cutmix) < 0.0:
            raise InputError(
                "recipe: images.label_smoothing is a share below 1, images.mixup and images.cutmix"
                f" are 0 or above; they are {self.label_smoothing:g}, {self.mixup:g} and"
                f" {self.cutmix:g}"
            )

    def _check_crop(self) -> None:
        for name, (low, high) in (("area", self.area), ("shape", self.shape)):
            if not 0.0 < low <= high or (name == "area" and high > 1.0):
                raise InputError(
                    f"recipe: images.{name} is [{low:g}, {high:g}]; give the least and the largest,"
                    " above 0" + (" and at most 1" if name == "area" else "")
                )
        if self.padding < 0 or not 0.0 < self.centre_share <= 1.0:
            raise InputError(
                f"recipe: images.padding is {self.padding} and images.centre_share"
                f" {self.centre_share:g}; they must be 0 or more, and above 0 and at most 1"
            )
