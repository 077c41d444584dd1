"""What runs under Ray Train: `python -m ridgeline.launch.ray_entry --workers N -- WORKER… FOLDER`.

Ray places the workers (a placement group: all or none) and starts them again after a failure. Each
worker becomes one rank: it runs the very process that torchrun would run, with torchrun's
variables. The ranks meet at a port of rank 0's node. Ray's own process group (gloo) holds no
device. https://docs.ray.io/en/latest/train/api/doc/ray.train.torch.TorchTrainer.html
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from ridgeline.launch.job import LaunchJob


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point on the Ray cluster; exits with the run's code."""
    options = _parser().parse_args(arguments)
    try:
        result = train(options)
    except MissingExtra as error:
        sys.exit(f"ridgeline: {error}")
    if result.error is not None:
        sys.exit(f"ridgeline: {result.error}")


def ray_entry_command(job: LaunchJob) -> list[str]:
    """Words of the command, to be run on any node of the Ray cluster."""
    words = [job.cluster.run.python, "-m", "ridgeline.launch.ray_entry", "--name", job.name]
    words += ["--workers", str(job.num_nodes * job.ranks_per_node)]
    words += ["--restarts", str(job.cluster.run.restarts)]
    if job.cluster.nodes.devices:
        words.append("--gpu")
    for key, value in sorted(job.environment.items()):
        words += ["--env", f"{key}={value}"]
    return [*words, "--", *job.worker, job.folder]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ridgeline.launch.ray_entry")
    parser.add_argument("--name", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("worker", nargs="+", help="what a rank runs, after `python`")
    return parser


def train(options: argparse.Namespace) -> Any:
    """Run it; Ray's own result.

    Raises:
        MissingExtra: Ray is not installed.
        InputError: A value of `--env` is not KEY=VALUE.
    """
    for setting in options.env:
        if "=" not in setting:
            raise InputError(f"--env {setting!r} is not KEY=VALUE")
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    trainer = TorchTrainer(
        rank,
        train_loop_config={"worker": options.worker, "env": options.env},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=options.workers, use_gpu=options.gpu, placement_strategy="PACK"
        ),
        run_config=RunConfig(
            name=options.name,
            storage_path=os.path.dirname(options.worker[-1].rstrip("/")),
            failure_config=FailureConfig(max_failures=options.restarts),
        ),
    )
    return trainer.fit()


def rank(config: dict[str, Any]) -> None:
    """One worker of Ray: becomes one rank."""
    import ray
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    context = ray.train.get_context()
    with _reserved_port() as mine:
        host, port = broadcast_from_rank_zero((ray.util.get_node_ip_address(), mine))
        environment = rank_environment(
            rank=context.get_world_rank(),
            local_rank=context.get_local_rank(),
            world=context.get_world_size(),
            local_world=context.get_local_world_size(),
            meeting=(host, port),
        )
        settings = dict(one.split("=", 1) for one in config["env"])
        run_rank([sys.executable, *config["worker"]], {**os.environ, **settings, **environment})


def rank_environment(
    *, rank: int, local_rank: int, world: int, local_world: int, meeting: tuple[str, int]
) -> dict[str, str]:
    """The variables that torchrun sets for a rank.

    >>> rank_environment(
    ...     rank=3, local_rank=1, world=4, local_world=2, meeting=("10.0.0.1", 29500)
    ... )["MASTER_ADDR"]
    '10.0.0.1'
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank // local_world),
        "MASTER_ADDR": meeting[0],
        "MASTER_PORT": str(meeting[1]),
    }


def run_rank(words: list[str], environment: dict[str, str]) -> None:
    """The rank as a process of its own: Ray's threads and settings stay out of it."""
    process = subprocess.Popen(words, env=environment)
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    if code:
        raise RuntimeError(f"rank {environment['RANK']} ended with {code}")


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that the system gives to nobody else while it is held.

    It is bound and not listened on, so that torch's store, which reuses addresses too, can bind it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield int(held.getsockname()[1])


if __name__ == "__main__":
    main()
