"""What may come out otherwise on another day: places that are touched without an order.

Between programs nothing is ordered, as they run in any order or at once; within a program only
`tl.debug_barrier` orders what one thread writes and another reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.kernels.check.seen import Access, SeenLaunch, among, distinct
from ridgeline.records.kernel_check import KernelFinding

_REORDERED = 1e-2
"""Atomics may add in any order: results that differ by less are rounding."""
_NONE = np.empty(0, np.uint64)


def place_of(seen: SeenLaunch, accesses: Sequence[Access]) -> str:
    """The line of the first access, or of the kernel without one."""
    return f"{seen.file}:{accesses[0].line if accesses else seen.line}"


_OF_ANOTHER_TILE = (5e-3, 5e-2)
"""What sums in another order, of tf32 at most, may change of results of 32 bits, and of fewer."""


def races(seen: SeenLaunch) -> Iterator[KernelFinding]:
    """Places that several programs or lanes write, or one writes and another reads."""
    if any(one.kind == "lock" for one in seen.accesses):
        return
    stores = [one for one in seen.accesses if one.kind == "store"]
    writers = _owners(stores)
    twice = _by_several(writers)
    if len(twice):
        yield _written_again(seen, stores, twice, "written by several programs")
    within = [one for one in stores if len(distinct(one.starts)) < len(one.starts)]
    if within:
        places = distinct(np.concatenate([_more_than_once(one.starts) for one in within]))
        yield _written_again(seen, within, places, "written by several lanes of a store")
    loads = [one for one in seen.accesses if one.kind == "load"]
    mixed = _by_several(_each_once(np.concatenate([writers, _owners(loads)])))
    read = mixed[among(mixed, distinct(writers[:, 0]))] if len(mixed) else mixed
    read = read[~among(read, twice)]
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


def configurations(seen: SeenLaunch, shown: set[int]) -> Iterator[KernelFinding]:
    """Results that another configuration of the autotuner gives otherwise.

    Args:
        seen: Of one configuration.
        shown: Where the storages begin that the run came to; other tensors may be scratch, which
            tiles of another size fill otherwise.
    """
    for name, far in seen.depends_on_configuration.items():
        tensor = seen.tensors[name]
        float_ = tensor.is_floating_point()
        if tensor.untyped_storage().data_ptr() not in shown or not float_:
            continue
        if far > _OF_ANOTHER_TILE[tensor.element_size() < 4]:
            yield KernelFinding(
                cause="configuration-dependent",
                kernel=seen.kernel,
                summary=f"with {seen.configuration}, {name} differs by {far:.2g} of its largest "
                "from what the last configuration gives",
                evidence={"argument": name, "relative_change": far},
                where=f"{seen.file}:{seen.line}",
                cure="mask what a tile of this size leaves over, and let loops cover all of it",
            )


def without_barrier(seen: SeenLaunch) -> Iterator[KernelFinding]:
    """Places that one thread of a program writes and another one touches, with no barrier between.

    Threads are told apart by where in the tile an element stands. What was written is seen by
    others only behind `tl.debug_barrier`; what was read before it is written is safe behind a
    reduction, too, which waits for all.
    """
    if any(one.kind == "lock" for one in seen.accesses):
        return
    kinds: dict[int, dict[str, list[tuple[int, Access]]]] = {}
    for order, one in enumerate(seen.accesses):
        if one.kind in ("load", "store"):
            both = kinds.setdefault(one.program, {"load": [], "store": []})
            both[one.kind].append((order, one))
    places: set[int] = set()
    guilty: list[Access] = []
    for both in kinds.values():
        written = distinct(np.concatenate([one.starts for _, one in both["store"]] or [_NONE]))
        for loaded, load in both["load"]:
            if not len(written) or not among(load.starts, written).any():
                continue
            for stored, store in both["store"]:
                found = _unordered(load, store, load_is_first=loaded < stored)
                if found:
                    places.update(found)
                    guilty.append(load)
    if places:
        yield KernelFinding(
            cause="missing-barrier",
            kernel=seen.kernel,
            summary=f"{len(places)} places are written and read by other threads of one program "
            "without a barrier between",
            evidence={"places": len(places)},
            where=place_of(seen, guilty),
            cure="put tl.debug_barrier() between, or keep the values in registers",
        )


def _written_again(
    seen: SeenLaunch, stores: Sequence[Access], places: np.ndarray, words: str
) -> KernelFinding:
    """A race, or a waste where each of those that write a place writes the same."""
    again = [one for one in stores if among(one.starts, places).any()]
    count = sum(len(_unlike(again, width, places)) for width in {one.width_bytes for one in again})
    if count:
        return _race(seen, "write-write-race", again, count, words)
    return KernelFinding(
        cause="repeated-write",
        kernel=seen.kernel,
        summary=f"{len(places)} places are {words}, the same value each time",
        evidence={"places": len(places)},
        where=place_of(seen, again),
        cure="mask what a tile has beyond its part, so that it is computed and stored once",
    )


def _unlike(stores: Sequence[Access], width: int, places: np.ndarray) -> np.ndarray:
    """The places to which stores of a width write more than one value."""
    rows = []
    for one in stores:
        kept = among(one.starts, places)
        if one.width_bytes == width and kept.any():
            at = one.starts[kept].view(np.uint8).reshape(-1, 8)
            rows.append(np.concatenate([at, one.written[kept]], 1))
    if not rows:
        return _NONE
    whole = np.unique(np.concatenate(rows), axis=0)
    return _more_than_once(np.ascontiguousarray(whole[:, :8]).view(np.uint64).reshape(-1))


def _more_than_once(places: np.ndarray) -> np.ndarray:
    ordered = np.sort(places)
    return distinct(ordered[1:][ordered[1:] == ordered[:-1]])


def _unordered(load: Access, store: Access, *, load_is_first: bool) -> list[int]:
    """Addresses that a load and a store share, at other places of the tile, unordered."""
    if load.barriers != store.barriers or (load_is_first and load.folds != store.folds):
        return []
    read, written = load.starts, store.starts
    if not len(read) or not len(written):
        return []
    if read.min() > written.max() or written.min() > read.max():
        return []
    same_tile = load.addresses.shape == store.addresses.shape
    if same_tile and np.array_equal(load.addresses, store.addresses):
        return []
    shared, of_load, of_store = np.intersect1d(read, written, return_indices=True)
    if not same_tile:
        return [int(one) for one in shared]
    apart = _threads(load)[of_load] != _threads(store)[of_store]
    return [int(one) for one in shared[apart]]


def _threads(access: Access) -> np.ndarray:
    """Where in its tile each active element stands."""
    return np.flatnonzero((access.active & access.inside).reshape(-1))


def _race(
    seen: SeenLaunch, cause: str, accesses: Sequence[Access], count: int, words: str
) -> KernelFinding:
    return KernelFinding(
        cause=cause,
        kernel=seen.kernel,
        summary=f"{count} places are {words}",
        evidence={"places": count},
        where=place_of(seen, accesses),
        cure="let each element be written by one program, or combine by atomics",
    )


def _owners(accesses: Sequence[Access]) -> np.ndarray:
    """Pairs of (address, program), each once."""
    if not accesses:
        return np.empty((0, 2), np.uint64)
    pairs = [
        np.stack([one.starts, np.full(len(one.starts), one.program, np.uint64)], 1)
        for one in accesses
    ]
    return _each_once(np.concatenate(pairs))


def _each_once(pairs: np.ndarray) -> np.ndarray:
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    first = np.ones(len(ordered), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(1)
    return np.asarray(ordered[first])


def _by_several(pairs: np.ndarray) -> np.ndarray:
    """The addresses of several programs, of pairs in order."""
    places = pairs[:, 0]
    return distinct(places[1:][places[1:] == places[:-1]])
