"""What follows from the memory that launches touched: findings, bytes and sectors.

A sector is the 32 bytes that a GPU's memory moves at once. Lanes are taken 32 at a time in the
order of the tile, or of its transpose where that needs fewer: the compiler lays tiles out so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ridgeline.kernels.check.watching import Access, SeenLaunch
from ridgeline.records.kernel_check import KernelFinding, KernelLaunch, LaunchArgument

SECTOR_BYTES = 32
_LANES = 32
_POOR_EFFICIENCY = 0.5
"""Below it, a line's requests are a finding."""
_FEW_SECTORS = 64
"""Requests of fewer sectors in all are too small to judge."""
_REORDERED = 1e-2
"""Atomics may add in any order: results that differ by less are rounding."""


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
        options={
            name: value
            for name, value in seen.options.items()
            if name in {"num_warps", "num_stages", "enable_fp_fusion"}
        },
        loaded_bytes=sum(len(_bytes(one)) for one in loads),
        stored_bytes=sum(len(_bytes(one)) for one in stores),
        minimum_bytes=len(_unique_bytes(loads)) + len(_unique_bytes(stores)),
        sector_efficiency=round(wanted / (moved * SECTOR_BYTES), 4) if moved else 1.0,
    )


def findings(launches: Sequence[SeenLaunch]) -> Iterator[KernelFinding]:
    """Everything that is wrong or wasteful, launch by launch; then outputs without a value."""
    for seen in launches:
        yield from _outside(seen)
        yield from _races(seen)
        yield from _not_a_number(seen)
        yield from _uncoalesced(seen)
    yield from _unwritten(launches)


def _place(seen: SeenLaunch, accesses: Sequence[Access]) -> str:
    return f"{seen.file}:{accesses[0].line if accesses else seen.line}"


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
            where=_place(seen, wrong),
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


def _races(seen: SeenLaunch) -> Iterator[KernelFinding]:
    if any(one.kind == "lock" for one in seen.accesses):
        return
    stores = [one for one in seen.accesses if one.kind == "store"]
    writers = _owners(stores)
    twice = _by_several(writers)
    if len(twice):
        yield _race(seen, "write-write-race", stores, len(twice), "written by several programs")
    within = [one for one in stores if len(np.unique(_starts(one))) < len(_starts(one))]
    if within:
        count = sum(len(_starts(one)) - len(np.unique(_starts(one))) for one in within)
        yield _race(seen, "write-write-race", within, count, "written by several lanes of a store")
    loads = [one for one in seen.accesses if one.kind == "load"]
    mixed = _by_several(np.unique(np.concatenate([writers, _owners(loads)]), axis=0))
    read = mixed[np.isin(mixed, writers[:, 0])] if len(mixed) else mixed
    read = read[~np.isin(read, twice)]
    if len(read):
        yield _race(
            seen, "read-write-race", stores, len(read), "written by one program, read by another"
        )
    atomics = any(one.kind == "atomic" for one in seen.accesses)
    moved = {
        name: far for name, far in seen.depends_on_order.items() if not atomics or far > _REORDERED
    }
    if moved:
        name, far = max(moved.items(), key=lambda one: one[1])
        yield KernelFinding(
            cause="order-dependent",
            kernel=seen.kernel,
            summary=f"{name} changes by {far:.2g} of its largest in another order of programs",
            evidence={"argument": name, "relative_change": far},
            where=f"{seen.file}:{seen.line}",
            cure="let each element be written by one program, or combine by atomics",
        )


def _race(
    seen: SeenLaunch, cause: str, accesses: Sequence[Access], count: int, words: str
) -> KernelFinding:
    return KernelFinding(
        cause=cause,
        kernel=seen.kernel,
        summary=f"{count} places are {words}",
        evidence={"places": count},
        where=_place(seen, accesses),
        cure="let each element be written by one program, or combine by atomics",
    )


def _owners(accesses: Sequence[Access]) -> np.ndarray:
    """Pairs of (address, program), each once."""
    if not accesses:
        return np.empty((0, 2), np.uint64)
    pairs = [
        np.stack([_starts(one), np.full(len(_starts(one)), one.program, np.uint64)], 1)
        for one in accesses
    ]
    return np.unique(np.concatenate(pairs), axis=0)


def _by_several(pairs: np.ndarray) -> np.ndarray:
    places, counts = np.unique(pairs[:, 0], return_counts=True)
    return places[counts > 1]


def _starts(access: Access) -> np.ndarray:
    return access.addresses[access.active & access.inside].reshape(-1)


def _bytes(access: Access) -> np.ndarray:
    offsets = np.arange(access.width_bytes, dtype=np.uint64)
    return (_starts(access)[:, None] + offsets).reshape(-1)


def _unique_bytes(accesses: Sequence[Access]) -> np.ndarray:
    found = [_bytes(one) for one in accesses]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


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
            where=_place(seen, read),
            cure="start what is added to at zero, and mask reads of what is not written",
        )
    elif written:
        count = sum(int(one.nan.sum()) for one in written)
        yield KernelFinding(
            cause="nan-result",
            kernel=seen.kernel,
            summary=f"{count} results are NaN, though no input is",
            evidence={"elements": count},
            where=_place(seen, written),
            cure="look for 0 / 0, inf - inf and lanes without a value (`other=`)",
        )


def _uncoalesced(seen: SeenLaunch) -> Iterator[KernelFinding]:
    by_line: dict[tuple[str, int], list[Access]] = {}
    for one in seen.accesses:
        by_line.setdefault((one.kind, one.line), []).append(one)
    for (kind, line), accesses in by_line.items():
        counts = [request_sectors(one) for one in accesses]
        wanted, moved = sum(one[0] for one in counts), sum(one[1] for one in counts)
        if moved < _FEW_SECTORS or wanted >= _POOR_EFFICIENCY * moved * SECTOR_BYTES:
            continue
        share = wanted / (moved * SECTOR_BYTES)
        yield KernelFinding(
            cause="uncoalesced",
            kernel=seen.kernel,
            summary=f"a {kind} uses {share:.0%} of the bytes of the sectors that it touches",
            evidence={"sectors": moved, "wanted_bytes": wanted, "efficiency": round(share, 4)},
            where=f"{seen.file}:{line}",
            cure="let neighbouring lanes touch neighbouring elements",
        )


def request_sectors(access: Access) -> tuple[int, int]:
    """Bytes that full warps ask for, and the sectors that hold them, in the better order."""
    orders = [access.addresses, access.addresses.T] if access.addresses.ndim > 1 else [
        access.addresses
    ]  # fmt: skip
    masks = [access.active & access.inside]
    masks += [masks[0].T] if len(orders) > 1 else []
    found = [
        _sectors_of(places.reshape(-1), kept.reshape(-1), access.width_bytes)
        for places, kept in zip(orders, masks, strict=True)
    ]
    return min(found, key=lambda one: one[1])


def _sectors_of(places: np.ndarray, kept: np.ndarray, width: int) -> tuple[int, int]:
    places, kept = np.asarray(places), np.asarray(kept)
    short = -len(places) % _LANES
    if len(places) < _LANES or not kept.any():
        return 0, 0
    places = np.pad(places, (0, short)).reshape(-1, _LANES)
    kept = np.pad(kept, (0, short)).reshape(-1, _LANES)
    return (
        _distinct(places, kept) * width,
        _distinct(places // np.uint64(SECTOR_BYTES), kept),
    )


def _distinct(values: np.ndarray, kept: np.ndarray) -> int:
    """How many distinct values the rows have among what is kept, summed."""
    none = np.uint64(2**64 - 1)
    ordered = np.sort(np.where(kept, values, none), axis=1)
    first = np.ones(ordered.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int((first & (ordered != none)).sum())


def _unwritten(launches: Sequence[SeenLaunch]) -> Iterator[KernelFinding]:
    """Elements of outputs that held what `torch.empty` leaves, and that no launch has written."""
    written = _unique_bytes([o for seen in launches for o in seen.accesses if o.kind != "load"])
    judged: set[tuple[int, tuple[int, ...]]] = set()
    for seen in launches:
        stores = _unique_bytes([one for one in seen.accesses if one.kind != "load"])
        for name, tensor in seen.tensors.items():
            key = (tensor.data_ptr(), tuple(tensor.shape))
            places = _elements(tensor)
            if key in judged or not len(places) or not np.isin(places, stores).any():
                continue
            judged.add(key)
            left = ~np.isin(places, written) & _poisoned(tensor)
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


def _elements(tensor: torch.Tensor) -> np.ndarray:
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
        given = getattr(value, "value", value)
        plain = given is None or isinstance(given, bool | int | float | str)
        fixed = name in seen.constants or given is None or isinstance(given, str)
        kind = "other" if not plain else "constant" if fixed else "number"
        yield LaunchArgument(name=name, kind=kind, value=given if plain else None)
