"""Measure the links between the ranks of a job: point to point, then collectives over all of them.

    probe_links(4)        four ranks on this machine, gloo on CPUs, NCCL where each has a GPU
    measure_as_rank()     what each of them does; also under a launcher of the job's own

Beside each collective stands what `cost/` foretells for a ring over the slowest link that was
measured. Ranks that torchrun, Slurm or another launcher has started (`RANK` and `WORLD_SIZE` are
set) measure the links of that very job, across its machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from ridgeline.cost.collective_volume import exchange_seconds, ring_all_reduce_seconds
from ridgeline.errors import ChildDied, InputError, MissingExtra
from ridgeline.hardware.link_rates import CollectiveTime, LinkRates, NeighbourLink
from ridgeline.measure.parent_death import die_with_parent

if TYPE_CHECKING:
    import torch

Foretold = Callable[[int, float, float, float], float]

REPEATS = {2**12: 40, 2**20: 10, 2**24: 5}
"""Buffers and how often each is sent; the largest fills the link, the smallest is its latency."""
FORETOLD: Mapping[str, Foretold] = {
    "all-reduce": ring_all_reduce_seconds,
    "all-gather": exchange_seconds,
    "all-to-all": exchange_seconds,
}
MOST_RANKS = 64
"""One machine is asked to start no more."""
_SECONDS = 300.0


def probe_links(num_ranks: int) -> LinkRates:
    """Start so many ranks on this machine, and measure what lies between them.

    Raises:
        InputError: There are no two ranks, or more than a machine starts.
        ChildDied: A rank ended with an error.
    """
    if not 2 <= num_ranks <= MOST_RANKS:
        raise InputError(f"--ranks {num_ranks}: give 2 to {MOST_RANKS} to start on this machine")
    _torch()
    with tempfile.TemporaryDirectory(prefix="ridgeline-links-") as name:
        answer = Path(name) / "answer.json"
        log = Path(name) / "log"
        with log.open("wb") as heard:
            words = [sys.executable, "-m", "ridgeline.measure.links", str(os.getpid()), str(answer)]
            ranks = [
                subprocess.Popen(
                    words,
                    env=_environment(rank, num_ranks, Path(name) / "store"),
                    stdout=heard,
                    stderr=heard,
                )
                for rank in range(num_ranks)
            ]
            try:
                codes = [rank.wait(_SECONDS) for rank in ranks]
            except subprocess.TimeoutExpired:
                raise ChildDied(f"the ranks had not measured after {_SECONDS:g} s") from None
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
        if any(codes):
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise ChildDied(f"a rank of the probe failed: {said[-1] if said else codes}")
        return msgspec.json.decode(answer.read_bytes(), type=LinkRates)


def started_ranks() -> int | None:
    """The number of ranks of the job that a launcher has made this process a part of."""
    if "RANK" not in os.environ:
        return None
    return int(os.environ.get("WORLD_SIZE", "1"))


def measure_as_rank(store: Path | None = None) -> LinkRates | None:
    """Measure with the other ranks; what was found on rank 0, None on the others.

    Args:
        store: A file that all ranks meet in; None: where the launcher's variables say.
    """
    _torch()
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    on_gpu = torch.cuda.device_count() > local
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    method = "env://" if store is None else f"file://{store}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=world)
    try:
        neighbours = [_between(rank, one, (one + 1) % world, device) for one in _sources(world)]
        slowest = min(neighbours, key=lambda link: link.bytes_per_second)
        latency = max(link.latency_seconds for link in neighbours)
        times = [
            CollectiveTime(
                operation=name,
                buffer_bytes=size,
                seconds=_slowest(_collective(name, size, world, device), size, device),
                foretold_seconds=FORETOLD[name](world, size, slowest.bytes_per_second, latency),
            )
            for name in FORETOLD
            for size in REPEATS
        ]
    finally:
        dist.destroy_process_group()
    if rank:
        return None
    return LinkRates(
        num_ranks=world,
        backend=backend,
        device_name=torch.cuda.get_device_name() if on_gpu else "cpu",
        neighbours=neighbours,
        collectives=times,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _sources(world: int) -> range:
    """Whoever sends to the next one; between two ranks there is one link."""
    return range(world if world > 2 else 1)


def _between(rank: int, source: int, target: int, device: torch.device) -> NeighbourLink:
    """A link as its two ends measure it while the others wait."""
    import torch.distributed as dist

    seconds = {}
    for size in (min(REPEATS), max(REPEATS)):
        taken = 0.0
        dist.barrier()
        if rank in (source, target):
            taken = _best(_there_and_back(rank, source, target, size, device), size, device)
        seconds[size] = _largest(taken, device) / 2
    latency, whole = seconds[min(REPEATS)], seconds[max(REPEATS)]
    return NeighbourLink(
        source=source,
        target=target,
        latency_seconds=latency,
        bytes_per_second=max(REPEATS) / max(whole - latency, 1e-9),
    )


def _there_and_back(
    rank: int, source: int, target: int, size: int, device: torch.device
) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    buffer = torch.zeros(size, dtype=torch.uint8, device=device)

    def once() -> None:
        if rank == source:
            dist.send(buffer, target)
            dist.recv(buffer, target)
        else:
            dist.recv(buffer, source)
            dist.send(buffer, source)

    return once


def _collective(name: str, size: int, world: int, device: torch.device) -> Callable[[], Any]:
    """The call of one collective that leaves each rank with a buffer of `size` bytes."""
    import torch
    import torch.distributed as dist

    share = size // (4 * world)
    whole = torch.zeros(share * world, dtype=torch.float32, device=device)
    if name == "all-reduce":
        return lambda: dist.all_reduce(whole)
    if name == "all-gather":
        part = torch.zeros(share, dtype=torch.float32, device=device)
        return lambda: dist.all_gather_into_tensor(whole, part)
    given = torch.zeros_like(whole)
    return lambda: dist.all_to_all_single(whole, given)


def _slowest(call: Callable[[], Any], size: int, device: torch.device) -> float:
    import torch.distributed as dist

    dist.barrier()
    return _largest(_best(call, size, device), device)


def _best(call: Callable[[], Any], size: int, device: torch.device) -> float:
    """The best of as many calls as a buffer of this size gets, after two that do not count."""
    import torch

    taken = []
    for _ in range(REPEATS[size] + 2):
        started = perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(perf_counter() - started)
    return min(taken[2:])


def _largest(seconds: float, device: torch.device) -> float:
    """The largest of what the ranks measured, on all of them."""
    import torch
    import torch.distributed as dist

    told = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def _environment(rank: int, num_ranks: int, store: Path) -> dict[str, str]:
    ours = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    ours |= {"OMP_NUM_THREADS": "1", "RIDGELINE_LINK_STORE": str(store)}
    return {**os.environ, **ours}


def _torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra("torch", "train")


def main() -> None:
    """Be one rank that `probe_links` has started."""
    parent, answer = int(sys.argv[1]), Path(sys.argv[2])
    die_with_parent(parent)
    found = measure_as_rank(Path(os.environ["RIDGELINE_LINK_STORE"]))
    if found is not None:
        answer.write_bytes(msgspec.json.encode(found))
    sys.stderr.flush()
    os._exit(0)  # gloo's threads abort Python's own end now and then


if __name__ == "__main__":
    main()
