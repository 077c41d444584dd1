"""Sources of images: every form that people keep them in gives the same pictures and labels."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ridgeline.errors import InputError
from ridgeline.image_files.read_ahead import read_ahead
from ridgeline.image_files.source import open_images

CLASSES = ("bee", "cat", "wasp")
LABELS = (0, 0, 1, 1, 1, 2)


@pytest.fixture(scope="module")
def pictures() -> NDArray[np.uint8]:
    """Six pictures of 20 × 30 that PNG keeps as they are."""
    return np.random.default_rng(0).integers(0, 256, (6, 20, 30, 3), dtype=np.uint8)


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture as the bytes of a file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def class_folders(pictures: NDArray[np.uint8], where: Path) -> Path:
    for place, (picture, label) in enumerate(zip(pictures, LABELS, strict=True)):
        (where / CLASSES[label]).mkdir(parents=True, exist_ok=True)
        (where / CLASSES[label] / f"{place}.png").write_bytes(png(picture))
    return where


def flat(pictures: NDArray[np.uint8], where: Path) -> Path:
    where.mkdir()
    lines = ["file,label"]
    for place, (picture, label) in enumerate(zip(pictures, LABELS, strict=True)):
        (where / f"{place}.png").write_bytes(png(picture))
        lines.append(f"{place}.png,{CLASSES[label]}")
    (where / "labels.csv").write_text("\n".join(lines) + "\n")
    return where


def shards(pictures: NDArray[np.uint8], where: Path) -> Path:
    where.mkdir()
    for shard in range(2):
        with tarfile.open(where / f"part-{shard:02d}.tar", "w") as file:
            for place in range(3 * shard, 3 * shard + 3):
                for suffix, content in (
                    ("cls", CLASSES[LABELS[place]].encode()),
                    ("png", png(pictures[place])),
                ):
                    add_member(file, f"images/{place:04d}.{suffix}", content)
    return where / "part-{00..01}.tar"


def test_floats_under_the_name_images_are_what_a_model_takes(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((4, 3, 8, 12), dtype=np.float32)
    np.savez(tmp_path / "lines.npz", images=values)
    source = open_images("--calibration", tmp_path / "lines.npz")
    assert (source.read(2) == values[2]).all()


def add_member(file: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    file.addfile(member, io.BytesIO(content))


def npz(pictures: NDArray[np.uint8], where: Path) -> Path:
    path = where.with_suffix(".npz")
    np.savez(path, images=pictures, labels=np.array(LABELS))
    return path


def mapped(pictures: NDArray[np.uint8], where: Path) -> Path:
    where.mkdir()
    np.save(where / "images.npy", pictures)
    np.save(where / "labels.npy", np.array(LABELS))
    return where


@pytest.mark.parametrize("write", [class_folders, flat, shards, npz, mapped])
def test_every_form_gives_the_same_pictures_and_labels(
    write: Callable[[NDArray[np.uint8], Path], Path],
    pictures: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    source = open_images("--images", write(pictures, tmp_path / "here"))

    assert len(source) == 6
    assert source.labels is not None
    assert source.labels.tolist() == list(LABELS)
    assert source.classes in ((), CLASSES)
    read = list(read_ahead(source, [5, 0, 3], threads=2))
    assert all((one == pictures[place]).all() for one, place in zip(read, [5, 0, 3], strict=True))


def test_a_flat_folder_without_a_table_has_no_labels(
    pictures: NDArray[np.uint8], tmp_path: Path
) -> None:
    folder = flat(pictures, tmp_path / "here")
    (folder / "labels.csv").unlink()

    assert open_images("--images", folder).labels is None


def lost_label(pictures: NDArray[np.uint8], where: Path) -> Path:
    folder = flat(pictures, where)
    (folder / "labels.csv").write_text("0.png,cat\n")
    return folder


def twofold_label(pictures: NDArray[np.uint8], where: Path) -> Path:
    folder = flat(pictures, where)
    (folder / "labels.csv").write_text("0.png,cat\n0.png,bee\n")
    return folder


def beside_folders(pictures: NDArray[np.uint8], where: Path) -> Path:
    class_folders(pictures, where)
    (where / "stray.png").write_bytes(png(pictures[0]))
    return where


def compressed(pictures: NDArray[np.uint8], where: Path) -> Path:
    shards(pictures, where)
    packed = where / "part.tar.gz"
    packed.write_bytes(gzip.compress((where / "part-00.tar").read_bytes()))
    return packed


def lost_shard(pictures: NDArray[np.uint8], where: Path) -> Path:
    shards(pictures, where)
    return where / "part-{00..02}.tar"


def in_a_header(pictures: NDArray[np.uint8], where: Path) -> Path:
    """A shard that ends a few bytes into the header of its third image."""
    shards(pictures, where)
    shard = where / "part-00.tar"
    with tarfile.open(shard) as opened:
        third = [one for one in opened if one.name.endswith(".png")][2]
    shard.write_bytes(shard.read_bytes()[: third.offset + 77])
    return shard


def in_an_image(pictures: NDArray[np.uint8], where: Path) -> Path:
    shards(pictures, where)
    shard = where / "part-00.tar"
    with tarfile.open(shard) as opened:
        second = [one for one in opened if one.name.endswith(".png")][1]
    shard.write_bytes(shard.read_bytes()[: second.offset_data + 20])
    return shard


def parted(pictures: NDArray[np.uint8], where: Path) -> Path:
    """Shards of which one ends with an image, and the next begins with its label."""
    shards(pictures, where)
    with tarfile.open(where / "part-00.tar", "w") as file:
        for name, content in (
            ("images/0000.cls", b"bee"),
            ("images/0000.png", png(pictures[0])),
            ("images/0009.png", png(pictures[1])),
        ):
            add_member(file, name, content)
    with tarfile.open(where / "part-01.tar", "a") as file:
        add_member(file, "images/0009.cls", b"cat")
    return where / "part-{00..01}.tar"


def cut_short(pictures: NDArray[np.uint8], where: Path) -> Path:
    folder = flat(pictures, where)
    (folder / "0.png").write_bytes(png(pictures[0])[:300])
    return folder


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lost_label, "labels.csv: says no label of 5 images"),
        (twofold_label, "line 2: 0.png has two labels"),
        (beside_folders, "images both beside and in folders"),
        (compressed, "is no plain .tar"),
        (lost_shard, "part-02.tar is missing"),
        (in_a_header, "part-00.tar is cut off or damaged"),
        (in_an_image, "part-00.tar is cut off or damaged"),
        (parted, "images/0009 has its image there and its label in"),
        (cut_short, "0.png: cannot be read as an image"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(
    write: Callable[[NDArray[np.uint8], Path], Path],
    says: str,
    pictures: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    path = write(pictures, tmp_path / "here")
    with pytest.raises(InputError) as caught:
        list(read_ahead(open_images("--images", path), [0]))

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sixteen_bits_of_grey_are_not_cut_off_and_numbers_without_a_range_are_refused(
    tmp_path: Path,
) -> None:
    ramp = np.linspace(0, 65535, 600).reshape(20, 30)
    (tmp_path / "cat").mkdir()
    for name, kind in (("a.png", np.uint16), ("b.tif", np.uint16), ("c.tif", np.float32)):
        Image.fromarray(ramp.astype(kind)).save(tmp_path / "cat" / name)
    source = open_images("--images", tmp_path)
    for place in (0, 1):
        pixels = source.read(place)
        assert (pixels.min(), pixels.max()) == (0, 255)
        assert abs(float(pixels.mean()) - 127.5) < 1
    with pytest.raises(InputError, match="floating-point numbers of 32 bits, and nothing says"):
        source.read(2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"<html>", "of no format that Pillow knows"),
        (b"II*\0\x08\0\0\0\1", "cannot be read"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_image_is_named_without_a_word_of_our_own_buffers(
    content: bytes, why: str, tmp_path: Path
) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.TIFF").write_bytes(content)
    with pytest.raises(InputError, match=why) as refusal:
        open_images("--images", tmp_path).read(0)
    assert "BytesIO" not in str(refusal.value)
    assert str(refusal.value).endswith("remove it")


def what_it_says(where: Path) -> str:
    """The size of the first image, or why it cannot be read."""
    try:
        height, width, _ = open_images("--images", where).read(0).shape
    except InputError as refusal:
        return str(refusal)
    return f"{height} × {width}"


def test_every_cut_of_an_animation_is_read_or_refused_in_one_line(
    pictures: NDArray[np.uint8], tmp_path: Path
) -> None:
    frames = [Image.fromarray(picture) for picture in pictures]
    for suffix in ("gif", "webp", "tif", "png"):
        whole = io.BytesIO()
        frames[0].save(
            whole, suffix.replace("tif", "tiff"), save_all=True, append_images=frames[1:]
        )
        content = whole.getvalue()
        for cut in range(1, len(content), max(1, len(content) // 12)):
            (tmp_path / f"a.{suffix}").write_bytes(content[:cut])
            said = what_it_says(tmp_path)
            assert said == "20 × 30" or said.endswith("remove it"), (suffix, cut)
        (tmp_path / f"a.{suffix}").unlink()


def test_folders_are_followed_through_links_and_hidden_ones_are_passed_over(
    pictures: NDArray[np.uint8], tmp_path: Path
) -> None:
    photos, others = tmp_path / "photos", tmp_path / "others"
    class_folders(pictures, photos)
    others.mkdir()
    (others / "far.JFIF").write_bytes(png(pictures[0]))
    (photos / "cat" / "more").symlink_to(others)
    (photos / "cat" / "circle").symlink_to(photos / "cat")
    hidden = photos / "cat" / ".ipynb_checkpoints"
    hidden.mkdir()
    (hidden / "2-checkpoint.png").write_bytes(png(pictures[2]))
    source = open_images("--images", photos)
    assert len(source) == 7
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1, 1, 1, 1, 2]


def test_the_parts_of_a_data_set_are_no_classes(
    pictures: NDArray[np.uint8], tmp_path: Path
) -> None:
    for part in ("train", "val"):
        class_folders(pictures, tmp_path / part)
    with pytest.raises(InputError, match=r"parts of a data set, not classes; give one.*/train$"):
        open_images("images.path", tmp_path)
    class_folders(pictures, tmp_path / "other")
    assert open_images("images.path", tmp_path).classes == ("other", "train", "val")
