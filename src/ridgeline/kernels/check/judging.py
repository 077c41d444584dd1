"""What follows from the memory that launches touched: findings, bytes and sectors.

A sector is the 32 bytes that a GPU's memory moves at once. Lanes are taken 32 at a time in the
order of the tile, or of its transpose where that needs fewer: the compiler lays tiles out so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl

from ridgeline.kernels.check.hints import kept_promises
from ridgeline.kernels.check.offsets import mixed_offsets, narrow_tensors
from ridgeline.kernels.check.races import configurations, place_of, races, without_barrier
from ridgeline.kernels.check.seen import Access, SeenLaunch, among, distinct
from ridgeline.records.kernel_check import KernelFinding, KernelLaunch, LaunchArgument

SECTOR_BYTES = 32
CAUSES = (
    "out-of-bounds", "write-write-race", "read-write-race", "missing-barrier", "order-dependent",
    "configuration-dependent", "uninitialised-read", "nan-result", "unwritten-output", "inexact",
    "overflow", "layout-dependent",
    "broken-hint", "narrow-offset", "repeated-write",
    "uncoalesced",
)  # fmt: skip
"""Every cause that a run under the interpreter can have."""
WASTES = frozenset({"narrow-offset", "repeated-write", "uncoalesced"})
"""The causes by which no result of a run is wrong."""
_LANES = 32
_POOR_EFFICIENCY = 0.5
"""Below it, a line's requests are a finding."""
_LEAST_WASTE = 0.1
"""A line that wastes less of all sectors of its launch is not worth a change."""
_FEW_SECTORS = 64
"""Requests of fewer sectors in all are too small to judge."""


def launch_record(seen: SeenLaunch) -> KernelLaunch:
    """What one launch was given, and the bytes that it moved."""
    loads = [one for one in seen.accesses if one.kind == "load"]
    stores = [one for one in seen.accesses if one.kind != "load"]
    counts = [request_sectors(one) for one in seen.accesses]
    wanted, moved = (sum(one[part] for one in counts) for part in (0, 1))
    return KernelLaunch(
        kernel=seen.kernel,
        file=seen.file,
        line=seen.line,
        programs=seen.programs,
        arguments=list(_arguments(seen)),
        options=_for_the_compiler(seen.options),
        loaded_bytes=sum(len(one.starts) * one.width_bytes for one in loads),
        stored_bytes=sum(len(one.starts) * one.width_bytes for one in stores),
        minimum_bytes=len(unique_bytes(loads)) + len(unique_bytes(stores)),
        sector_efficiency=round(wanted / (moved * SECTOR_BYTES), 4) if moved else 1.0,
        divergent_warps=round(_divergent_share(seen.accesses), 4),
        matrix_flops=seen.matrix_flops,
        matrix_dtype=seen.matrix_dtype,
        vector_flops=seen.vector_flops,
        narrow_offsets=narrow_tensors(seen),
        configuration=seen.configuration,
        variants=[_for_the_compiler(one) for one in seen.variants],
    )


def _for_the_compiler(options: dict[str, Any]) -> dict[str, int | bool]:
    return {
        name: value
        for name, value in options.items()
        if name in {"num_warps", "num_stages", "enable_fp_fusion"}
    }


def _divergent_share(accesses: Sequence[Access]) -> float:
    """The share of full warps' requests whose mask holds for a part of the lanes."""
    mixed = total = 0
    for one in accesses:
        lanes = one.active.reshape(-1)
        if len(lanes) >= _LANES:
            warps = lanes.reshape(-1, _LANES)
            mixed += int((warps.any(1) & ~warps.all(1)).sum())
            total += len(warps)
    return mixed / total if total else 0.0


def findings(
    launches: Sequence[SeenLaunch], returned: Sequence[torch.Tensor] = ()
) -> Iterator[KernelFinding]:
    """Everything that is wrong or wasteful, launch by launch; then outputs without a value.

    Args:
        launches: All of a run.
        returned: The tensors that the run came to, if it says so.
    """
    shown = {one.untyped_storage().data_ptr() for one in returned}
    for seen in launches:
        yield from _outside(seen)
        yield from races(seen)
        yield from configurations(seen, shown)
        yield from without_barrier(seen)
        yield from _not_a_number(seen)
        yield from kept_promises(seen.kernel, seen.file, seen.broken)
        yield from mixed_offsets(seen)
        yield from _uncoalesced(seen)
    yield from _unwritten(launches, returned)


def _outside(seen: SeenLaunch) -> Iterator[KernelFinding]:
    for kind in ("load", "store", "atomic", "lock"):
        wrong = [
            one for one in seen.accesses if one.kind == kind and (one.active & ~one.inside).any()
        ]
        if not wrong:
            continue
        lanes = sum(int((one.active & ~one.inside).sum()) for one in wrong)
        nearest = min(_distance(seen, one) for one in wrong)
        yield KernelFinding(
            cause="out-of-bounds",
            kernel=seen.kernel,
            summary=f"{lanes} lanes {kind} outside of every tensor, {nearest} bytes off or more",
            evidence={"lanes": lanes, "nearest_bytes": nearest, "kind": kind},
            where=place_of(seen, wrong),
            cure="mask the access by the tensor's true sizes, and check its strides",
        )


def _distance(seen: SeenLaunch, access: Access) -> int:
    """How many bytes the nearest lane is away from a tensor."""
    places = access.addresses[access.active & ~access.inside]
    away = [
        min(abs(int(place) - first), abs(int(place) + access.width_bytes - last))
        for place in places.reshape(-1)[:4096]
        for first, last in seen.ranges()
    ]
    return min(away, default=0)


def unique_bytes(accesses: Sequence[Access]) -> np.ndarray:
    """The address of each byte that is touched, in order."""
    return _spread((one.width_bytes, one.starts) for one in accesses)


def bytes_in(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """The address of each byte of tensors, in order."""
    return _spread((one.element_size(), elements_of(one)) for one in tensors)


def _spread(elements: Iterable[tuple[int, np.ndarray]]) -> np.ndarray:
    """The address of each byte of elements, given by their widths and where they begin."""
    by_width: dict[int, list[np.ndarray]] = {}
    for wide, starts in elements:
        by_width.setdefault(wide, []).append(starts)
    found = [
        (distinct(np.concatenate(starts))[:, None] + np.arange(width, dtype=np.uint64)).reshape(-1)
        for width, starts in by_width.items()
    ]
    return distinct(np.concatenate(found)) if found else np.empty(0, np.uint64)


def _not_a_number(seen: SeenLaunch) -> Iterator[KernelFinding]:
    read = [one for one in seen.accesses if one.kind == "load" and one.nan.any()]
    written = [one for one in seen.accesses if one.kind != "load" and one.nan.any()]
    if read:
        count = sum(int(one.nan.sum()) for one in read)
        yield KernelFinding(
            cause="uninitialised-read",
            kernel=seen.kernel,
            summary=f"{count} elements are read that are NaN, as memory is that nobody wrote",
            evidence={"elements": count},
            where=place_of(seen, read),
            cure="start what is added to at zero, and mask reads of what is not written",
        )
    elif written:
        count = sum(int(one.nan.sum()) for one in written)
        yield KernelFinding(
            cause="nan-result",
            kernel=seen.kernel,
            summary=f"{count} results are NaN, though no input is",
            evidence={"elements": count},
            where=place_of(seen, written),
            cure="look for 0 / 0, inf - inf and lanes without a value (`other=`)",
        )


def _uncoalesced(seen: SeenLaunch) -> Iterator[KernelFinding]:
    by_line: dict[tuple[str, int], list[Access]] = {}
    for one in seen.accesses:
        by_line.setdefault((one.kind, one.line), []).append(one)
    whole = sum(request_sectors(one)[1] for one in seen.accesses)
    for (kind, line), accesses in by_line.items():
        counts = [request_sectors(one) for one in accesses]
        wanted, moved = sum(one[0] for one in counts), sum(one[1] for one in counts)
        # Lanes that read one number together, and the ends of rows, have a sector to themselves.
        least = sum(least_sectors(one) for one in accesses)
        small = moved < _FEW_SECTORS or moved - least < _LEAST_WASTE * whole
        if small or least >= _POOR_EFFICIENCY * moved:
            continue
        share = wanted / (moved * SECTOR_BYTES)
        yield KernelFinding(
            cause="uncoalesced",
            kernel=seen.kernel,
            summary=f"{kind}s use {share:.0%} of the bytes of the sectors that they touch",
            evidence={"sectors": moved, "wanted_bytes": wanted, "efficiency": round(share, 4)},
            where=f"{seen.file}:{line}",
            cure="let neighbouring lanes touch neighbouring elements",
        )


def request_sectors(access: Access) -> tuple[int, int]:
    """Bytes that full warps ask for, and the sectors that hold them, in the better order."""
    found = [_sectors_of(*one, access.width_bytes) for one in _warps(access)]
    return min(found, key=lambda one: one[1], default=(0, 0))


def least_sectors(access: Access) -> int:
    """The sectors that would hold what each full warp asks for, if it lay side by side."""
    counts = []
    for places, kept in _warps(access):
        wanted = _distinct_by_warp(places, kept) * access.width_bytes
        counts.append(int((-(-wanted // SECTOR_BYTES)).sum()))
    return max(counts, default=0)


def _warps(access: Access) -> list[tuple[np.ndarray, np.ndarray]]:
    """Addresses and masks, a warp a row, in the order of the tile and of its transpose."""
    kept = access.active & access.inside
    if access.addresses.size < _LANES or not kept.any():
        return []
    orders = [(access.addresses, kept)]
    if kept.ndim > 1:
        orders.append((access.addresses.T, kept.T))
    short = -access.addresses.size % _LANES
    return [
        (
            np.pad(places.reshape(-1), (0, short)).reshape(-1, _LANES),
            np.pad(mask.reshape(-1), (0, short)).reshape(-1, _LANES),
        )
        for places, mask in orders
    ]


def _sectors_of(places: np.ndarray, kept: np.ndarray, width: int) -> tuple[int, int]:
    return (
        _distinct(places, kept) * width,
        _distinct(places // np.uint64(SECTOR_BYTES), kept),
    )


def _distinct(values: np.ndarray, kept: np.ndarray) -> int:
    """How many distinct values the rows have among what is kept, summed."""
    return int(_distinct_by_warp(values, kept).sum())


def _distinct_by_warp(values: np.ndarray, kept: np.ndarray) -> np.ndarray:
    none = np.uint64(2**64 - 1)
    ordered = np.sort(np.where(kept, values, none), axis=1)
    first = np.ones(ordered.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return np.asarray((first & (ordered != none)).sum(1))


def _unwritten(
    launches: Sequence[SeenLaunch], returned: Sequence[torch.Tensor]
) -> Iterator[KernelFinding]:
    """Elements of outputs that held what `torch.empty` leaves, and that no launch has written.

    Where a run says what it came to, what it returns a part of is judged by that part, and what a
    launch reads again and no one returns is scratch: it may be larger than what is written, and
    reading what is not would be a finding of its own.
    """
    read = unique_bytes([o for seen in launches for o in seen.accesses if o.kind == "load"])
    storages = {one.untyped_storage().data_ptr() for one in returned}
    shown = bytes_in(returned)
    written = unique_bytes([o for seen in launches for o in seen.accesses if o.kind != "load"])
    judged: set[tuple[int, tuple[int, ...]]] = set()
    for seen in launches:
        stores = unique_bytes([one for one in seen.accesses if one.kind != "load"])
        for name, tensor in seen.tensors.items():
            key = (tensor.data_ptr(), tuple(tensor.shape))
            places = elements_of(tensor)
            if key in judged or not len(places) or not among(places, stores).any():
                continue
            judged.add(key)
            left = ~among(places, written) & _poisoned(tensor)
            if tensor.untyped_storage().data_ptr() in storages:
                left &= among(places, shown)
            elif storages and among(places, read).any():
                continue
            if left.any():
                count = int(left.sum())
                yield KernelFinding(
                    cause="unwritten-output",
                    kernel=seen.kernel,
                    summary=f"{count} of {len(places)} elements of {name} are never written",
                    evidence={"argument": name, "elements": count, "of_elements": len(places)},
                    where=f"{seen.file}:{seen.line}",
                    cure="let the grid cover the whole output, and masks cut off no more than it",
                )


def elements_of(tensor: torch.Tensor) -> np.ndarray:
    """The address of each element, in the tensor's order."""
    places = np.zeros((), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(size) * stride
    return (places.reshape(-1) * tensor.element_size() + tensor.data_ptr()).astype(np.uint64)


def _poisoned(tensor: torch.Tensor) -> np.ndarray:
    """Which elements are what memory is filled with that nobody wrote."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype.is_floating_point:
        return np.asarray(flat.float().isnan().numpy())
    if flat.dtype == torch.bool:
        return np.asarray(flat.numpy())
    return np.asarray((flat == torch.iinfo(flat.dtype).max).numpy())


def _arguments(seen: SeenLaunch) -> Iterator[LaunchArgument]:
    for name, value in seen.arguments.items():
        if isinstance(value, torch.Tensor):
            yield LaunchArgument(
                name=name,
                kind="tensor",
                dtype=str(value.dtype).removeprefix("torch."),
                aligned=value.data_ptr() % 16 == 0,
            )
            continue
        if hasattr(value, "block_shape"):
            yield LaunchArgument(
                name=name,
                kind="descriptor",
                dtype=str(value.base.dtype).removeprefix("torch."),
                value=", ".join(str(size) for size in value.block_shape),
            )
            continue
        given = getattr(value, "value", value)
        if isinstance(given, tl.dtype):
            yield LaunchArgument(name=name, kind="dtype", dtype=given.name)
            continue
        plain = given is None or isinstance(given, bool | int | float | str)
        fixed = name in seen.constants or given is None or isinstance(given, str)
        kind = "other" if not plain else "constant" if fixed else "number"
        yield LaunchArgument(name=name, kind=kind, value=given if plain else None)
