"""Count the networks that Ridgeline ships as presets: `src/ridgeline/models/vision/presets.csv.gz`.

    python bench/vision_presets.py --table published_vision.csv.gz --cache FOLDER [--at-most N]
    python bench/vision_presets.py --cache FOLDER --write [--add]
    python bench/vision_presets.py --table published_vision.csv.gz --compare

The first form, with timm, torchvision and ultralytics installed, counts what `--cache` lacks (N
models in a call, which takes a second each); the second writes the file, with `--add` the present
one and what is cached; the third says which rows of the table have other GMACs or activations.
Every architecture of timm is counted at its own image size and at twice that, from which other
sizes are interpolated; a size of the table where interpolation is off by more than a part in 200 is
stored beside them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import pickle
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vision_definitions import SIZES

from ridgeline.models.vision.network import VisionNetwork, VisionOperator
from ridgeline.models.vision.presets import (
    FILE,
    find_name,
    load_network,
    network_index,
    network_names,
    stored_networks,
)
from ridgeline.models.vision.rows import COLUMNS, GROWING, read_row, write_row
from ridgeline.models.vision.sizes import resize

DEPLOYED = ("byobnet",)
"""Files of timm whose branches merge for inference; RepVGG's and MobileOne's papers count the
merged form, and so does timm. The other form has `_training` behind its name."""
RENAMED = {
    # Names of older versions of timm, for which the present one builds another architecture.
    "ig_resnext101_32x16d": "resnext101_32x16d",
    "ig_resnext101_32x32d": "resnext101_32x32d",
    "ig_resnext101_32x48d": "resnext101_32x48d",
    "vit_base_patch16_224_sam": "vit_base_patch16_224",
    "vit_base_patch32_224_sam": "vit_base_patch32_224",
}
CLOSE = 0.005
DEFINITIONS = Path(__file__).with_name("vision_definitions.py")
ONLY_TORCHVISION = (
    "alexnet", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "fcn_resnet50", "googlenet",
    "lraspp_mobilenet_v3_large", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3",
    "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn",
    "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0",
    "squeezenet1_0", "squeezenet1_1", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
"""Architectures that timm lacks."""


@dataclass(kw_only=True)
class Counted:
    """One architecture at its sizes."""

    name: str
    family: str
    small: VisionNetwork
    large: VisionNetwork | None = None
    """At the second size; None where it takes one size alone."""
    others: list[VisionNetwork] = field(default_factory=list)
    """At sizes that interpolation misses."""
    pair: tuple[VisionNetwork, VisionNetwork] | None = None
    """At twice and four times its size, where at its own size it has other operators: a window as
    large as the plane needs no partition."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--at-most", type=int, default=10_000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--only", default="", help="names that hold this")
    given = parser.parse_args()
    if given.compare:
        compare(given.table)
        return
    if given.write:
        files = sorted(given.cache.glob("*.pkl"))
        found = [pickle.loads(path.read_bytes()) for path in files]  # noqa: S301  # our own
        counted = {one.name: one for one in found if not isinstance(one, str)}
        kept = [one for one in shipped() if one.name not in counted] if given.add else []
        write_presets([*kept, *counted.values()])
        network_index.cache_clear()
        print(f"{len(network_names())} models, {FILE.stat().st_size:,} bytes in {FILE}")
        return
    given.cache.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    count_missing(given.table, given.cache, given.at_most, given.only)


def shipped() -> list[Counted]:
    """What the file holds, in the order of its index."""
    found = []
    for name, (first, *more) in network_index().items():
        small, large = stored_networks(first)
        found.append(
            Counted(
                name=name,
                family=first.family,
                small=small,
                large=large if first.larger else None,
                others=[stored_networks(one)[0] for one in more if one.larger is None],
                pair=next((stored_networks(one) for one in more if one.larger), None),
            )
        )
    return found


def count_missing(table: Path, cache: Path, at_most: int, only: str) -> None:
    from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import

    kept = let_torchvision_import()
    import timm

    sizes = table_sizes(table)
    names = [one for one in sizes if one not in SIZES and timm.is_model(RENAMED.get(one, one))]
    names += [one for one in timm.list_models() if one not in sizes]
    sources = [(one, f"timm:{RENAMED.get(one, one)}") for one in names]
    sources += [(one, f"torchvision:{one}") for one in ONLY_TORCHVISION]
    sources += [(one, f"{DEFINITIONS}:{one}") for one in SIZES]
    sources = [one for one in sources if only in one[0]]
    missing = [one for one in sources if not (cache / f"{one[0]}.pkl").exists()]
    print(f"{len(missing)} of {len(sources)} to count", flush=True)
    for name, source in missing[:at_most]:
        for counted in count(name, source, sizes.get(name, set())):
            own = counted.name if isinstance(counted, Counted) else name
            (cache / f"{own}.pkl").write_bytes(pickle.dumps(counted))
            print(own if isinstance(counted, Counted) else counted, flush=True)
    del kept


def table_rows(table: Path) -> list[dict[str, str]]:
    with gzip.open(table, "rt") as file:
        return list(csv.DictReader(file))


def compare(table: Path) -> None:
    """Print the networks whose published figures are not ours, and how many are."""
    published: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for row in table_rows(table):
        figures = (row["gmacs"], row["activations_m"])
        published[row["model"], row["input_hw"]].update({figures} if row["gmacs"] else ())
    same = unlike = 0
    absent = []
    for (name, size), figures in sorted(published.items()):
        sides = tuple(int(one) for one in size.split("x") if one.isdigit())
        if find_name(name) is None or len(sides) != 2:
            absent.append(f"{name} {size}")
            continue
        if not figures:
            continue
        network = load_network(name, sides)
        ours = network.published_macs / 1e9, network.published_activations / 1e6
        if any(all(map(near, ours, one)) for one in figures):
            same += 1
        else:
            unlike += 1
            print(f"{name} {size}: {ours[0]:.3f} GMACs, {ours[1]:.2f} M; published {figures}")
    print(f"{same} alike, {unlike} not, {len(absent)} not built: {', '.join(absent)}")


def near(ours: float, published: str) -> bool:
    """Within 1 %, or within the published figure's own rounding; blank ones are not compared."""
    if not published:
        return True
    rounding = 0.5 * 10.0 ** -len(published.partition(".")[2])
    return abs(ours - float(published)) <= max(0.01 * float(published), 1.001 * rounding)


def table_sizes(table: Path) -> dict[str, set[tuple[int, int]]]:
    """Model → image sizes of the published rows."""
    sizes: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for row in table_rows(table):
        height, _, width = row["input_hw"].partition("x")
        if height.isdigit() and width.isdigit():
            sizes[row["model"]].add((int(height), int(width)))
    return dict(sorted(sizes.items()))


def count(name: str, source: str, sizes: set[tuple[int, int]]) -> list[Counted | str]:
    """The model, and where its deployed form differs the other one; a reason where it fails."""
    try:
        plain = counted_at(name, source, sizes, deployed=False)
        if plain.family not in DEPLOYED:
            return [plain]
        merged = counted_at(name, source, sizes, deployed=True)
        if merged.small.parameters == plain.small.parameters:
            return [plain]
        return [replace(plain, name=f"{name}_training"), merged]
    except Exception as error:
        return [f"{name}: {type(error).__name__}: {str(error)[:200]}"]


def counted_at(name: str, source: str, sizes: set[tuple[int, int]], *, deployed: bool) -> Counted:
    first, built_size, family = recorded(name, source, None, deployed=deployed)
    counted = Counted(name=name, family=family, small=merged(first))
    larger = {1: first}
    for times in (2, 4):
        size = (times * built_size[0], times * built_size[1])
        try:
            larger[times] = recorded(name, source, size, deployed=deployed)[0]
            pair = merged_pair(larger[times // 2], larger[times])
        except Exception as error:
            print(f"{name}: not from {times // 2} to {times} times: {str(error)[:120]}", flush=True)
            if times not in larger:
                break
            continue
        if times == 2:
            counted.small, counted.large = pair
        else:
            counted.pair = pair
        break
    growing = counted.pair or (counted.large and (counted.small, counted.large))
    for size in sorted(sizes - {built_size}):
        other = merged(recorded(name, source, size, deployed=deployed)[0])
        if not growing or differs(resize(*growing, size), other):
            counted.others.append(other)
    return counted


def differs(one: VisionNetwork, other: VisionNetwork) -> bool:
    pairs = ((one.macs, other.macs), (one.activations, other.activations))
    return any(abs(got - true) > CLOSE * true for got, true in pairs)


def recorded(
    name: str, source: str, size: tuple[int, int] | None, *, deployed: bool
) -> tuple[VisionNetwork, tuple[int, int], str]:
    """The network unmerged, the size that its authors use, and its file."""
    import torch

    from ridgeline.measure.network.build import build_module
    from ridgeline.measure.network.count import record_operators

    built = build_module(source, size)
    if deployed:
        from timm.utils import reparameterize_model

        with torch.device("meta"):
            built = replace(built, module=reparameterize_model(built.module))
    own_size = SIZES.get(name, built.image_size)
    image_size = size or own_size
    network = VisionNetwork(
        name=name,
        image_size=image_size,
        operators=tuple(
            record_operators(built.module, image_size, name=name, channels=built.channels)
        ),
        parameters=sum(one.numel() for one in built.module.parameters()),
    )
    family = type(built.module).__module__.rpartition(".")[2]
    return network, own_size, family


def merged(network: VisionNetwork) -> VisionNetwork:
    from ridgeline.measure.network.count import merge_equal

    return replace(network, operators=tuple(merge_equal(network.operators)))


def merged_pair(small: VisionNetwork, large: VisionNetwork) -> tuple[VisionNetwork, VisionNetwork]:
    """Both with operators merged where they are equal at both sizes."""
    found: dict[tuple[VisionOperator, VisionOperator], tuple[str, int]] = {}
    for one, other in zip(small.operators, large.operators, strict=True):
        if (one.name, one.function) != (other.name, other.function):
            raise ValueError(f"{one.name} is {one.function}, and {other.function} at twice")
        key = replace(one, name=""), replace(other, name="")
        name, count = found.get(key, (one.name, 0))
        found[key] = name, count + 1
    pairs = [
        (replace(one, name=name, count=count), replace(other, name=name, count=count))
        for (one, other), (name, count) in found.items()
    ]
    return (
        replace(small, operators=tuple(one for one, _ in pairs)),
        replace(large, operators=tuple(other for _, other in pairs)),
    )


def write_presets(models: Sequence[Counted]) -> None:
    families: dict[str, list[Counted]] = defaultdict(list)
    for model in models:
        families[model.family].append(model)
    index: list[list[object]] = []
    members = b""
    for family, some in sorted(families.items()):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        lines = 0
        for model in some:
            stored = [(model.small, model.large), *((other, None) for other in model.others)]
            stored += [model.pair] if getattr(model, "pair", None) else []
            for small, large in stored:
                writer.writerows(rows(small, large))
                size = "x".join(map(str, small.image_size))
                larger = "" if large is None else "x".join(map(str, large.image_size))
                more = "" if large is None else large.parameters
                index.append(
                    [model.name, family, size, larger, small.parameters, more, len(members),
                     lines, len(small.operators)]
                )  # fmt: skip
                lines += len(small.operators)
        members += gzip.compress(text.getvalue().encode(), 9, mtime=0)
    head = io.StringIO()
    head.write("# Networks for images, written by bench/vision_presets.py. Members of this gzip\n")
    head.write("# file: this index, then one a family, at `offset` bytes behind the index.\n")
    head.write("# name,family,size,larger size,parameters,those at the larger,offset,line,lines\n")
    head.write(f"# An operator: {','.join(COLUMNS + GROWING)}\n")
    csv.writer(head, lineterminator="\n").writerows(index)
    FILE.write_bytes(gzip.compress(head.getvalue().encode(), 9, mtime=0) + members)


def rows(small: VisionNetwork, large: VisionNetwork | None) -> list[list[str]]:
    ratio = 1.0 if large is None else large.image_size[0] / small.image_size[0]
    others = (None,) * len(small.operators) if large is None else large.operators
    found = []
    for one, other in zip(small.operators, others, strict=True):
        cells = write_row(one, other, ratio)
        again, larger = read_row(cells, ratio)
        assert (again, other and larger) == (one, other), (one, other, cells)
        found.append(cells)
    return found


if __name__ == "__main__":
    main()
