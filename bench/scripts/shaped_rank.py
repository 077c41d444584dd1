"""What `bench/shaped_network.py` measures, seen from one rank: `shaped_rank.py SUBJECT ARGUMENT`.

The argument is JSON; rank 0 prints its results as one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeCommunication,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
)
from ridgeline.train.compression.bucket import Bucket
from ridgeline.train.compression.counted import CountedGroup
from ridgeline.train.compression.wire import attach, make_scheme
from ridgeline.train.local_sgd import LocalSgd
from ridgeline.train.ranks import Ranks, join, leave

STREAM_PORT = 5998
PIECE = 65_536
HARDLY_ANYTHING = 64
"""Bytes of an all-reduce that shows what it costs the hosts: four for each part and rank."""
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def link(argument: dict[str, Any], ranks: Ranks) -> dict[str, float]:
    """Latency and one-way bandwidth of the cable between ranks 0 and 1, by plain TCP."""
    result = {}
    dist.barrier()
    if ranks.rank == 1:
        with socket.create_server(("0.0.0.0", STREAM_PORT)) as server:  # noqa: S104
            dist.barrier()
            connection, _ = server.accept()
            _answer(connection, argument["stream_bytes"])
    elif ranks.rank == 0:
        dist.barrier()
        result = _ask(os.environ["PEER"], argument["stream_bytes"])
    else:
        dist.barrier()
    dist.barrier()
    return result | {"step_latency_seconds": _step_latency(ranks)}


def _ask(address: str, stream_bytes: int) -> dict[str, float]:
    with socket.create_connection((address, STREAM_PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(200):
            started = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            trips.append(time.perf_counter() - started)
        piece = bytes(PIECE)
        # The first half opens TCP's window and empties the token bucket.
        for _ in range(stream_bytes // PIECE):
            connection.sendall(piece)
        reached = float(connection.recv(64).decode())
    return {"latency_seconds": statistics.median(trips) / 2, "bytes_per_second": reached}


def _answer(connection: socket.socket, stream_bytes: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(200):
        connection.recv(1)
        connection.sendall(b"x")
    whole = stream_bytes // PIECE * PIECE
    received, started, at_start = 0, 0.0, 0
    while received < whole:
        received += len(connection.recv(PIECE))
        if not started and received >= whole // 2:
            started, at_start = time.perf_counter(), received
    connection.sendall(str((received - at_start) / (time.perf_counter() - started)).encode())
    connection.close()


def _step_latency(ranks: Ranks) -> float:
    """Eight bytes through gloo between two hosts, one way, while the others rest."""
    message = torch.zeros(1, dtype=torch.float64)
    trips = []
    for _ in range(300 if ranks.rank < 2 else 0):
        started = time.perf_counter()
        if ranks.rank == 0:
            dist.send(message, 1)
            dist.recv(message, 1)
        else:
            dist.recv(message, 0)
            dist.send(message, 0)
        trips.append(time.perf_counter() - started)
    dist.barrier()
    return statistics.median(trips) / 2 if trips else 0.0


def crossing(argument: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Both algorithms by size, and what one step of theirs costs: an exchange of eight bytes."""
    result: dict[str, Any] = {"link": link(argument, ranks)}
    result["exchange_seconds"] = _exchange_seconds(ranks)
    for name, way in (("ring", _ring), ("doubling", _doubling)):
        result[name] = {
            str(size): _timed(way, size, argument["seconds_each"]) for size in argument["sizes"]
        }
    return result


def _exchange_seconds(ranks: Ranks) -> float:
    """Both ways at once, as in a collective: gloo sends when it has heard that a receiver waits."""
    sent, taken = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    exchanges = []
    for _ in range(60 if ranks.rank < 2 else 0):
        started = time.perf_counter()
        _swap(sent, 1 - ranks.rank, taken, 1 - ranks.rank)
        exchanges.append(time.perf_counter() - started)
    dist.barrier()
    return statistics.median(exchanges) if exchanges else 0.0


def collectives(argument: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """All-reduces of gloo by size, in seconds."""
    found = link(argument, ranks)
    host_seconds = _timed(dist.all_reduce, HARDLY_ANYTHING, argument["seconds_each"])
    return {
        "link": found,
        "gloo_host_seconds": host_seconds,
        "gloo": {
            str(size): _timed(dist.all_reduce, size, argument["seconds_each"])
            for size in argument["gloo"]
        },
    }


def _timed(all_reduce: Callable[[Tensor], Any], size: int, seconds_each: float) -> float:
    """Median over rounds, of the mean of several in a row."""
    buffer = torch.ones(size // 4)
    all_reduce(buffer)
    dist.barrier()
    started = time.perf_counter()
    all_reduce(buffer)
    once = torch.tensor(time.perf_counter() - started)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    in_a_row = max(1, min(100, int(seconds_each / 5 / once.item())))
    rounds = []
    for _ in range(5):
        buffer.fill_(1.0)
        dist.barrier()
        started = time.perf_counter()
        for _ in range(in_a_row):
            all_reduce(buffer)
        rounds.append((time.perf_counter() - started) / in_a_row)
    return statistics.median(rounds)


def _ring(buffer: Tensor) -> None:
    """Thakur et al. 2005, section 4.5, from sends and receives: a subject, not a tool."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    parts = list(buffer.chunk(ranks))
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    incoming = torch.empty_like(parts[0])
    for step in range(2 * (ranks - 1)):
        sent, taken = (rank - step) % ranks, (rank - step - 1) % ranks
        space = incoming[: len(parts[taken])] if step < ranks - 1 else parts[taken]
        _swap(parts[sent], after, space, before)
        if step < ranks - 1:
            parts[taken].add_(space)


def _doubling(buffer: Tensor) -> None:
    """Recursive doubling, the same source; ranks are a power of two."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    incoming = torch.empty_like(buffer)
    distance = 1
    while distance < ranks:
        partner = rank ^ distance
        _swap(buffer, partner, incoming, partner)
        buffer.add_(incoming)
        distance *= 2


def _swap(sent: Tensor, to: int, taken: Tensor, source: int) -> None:
    # The receiver's "ready" must not queue behind its own data on the same connection.
    receiving = dist.irecv(taken, source)
    sending = dist.isend(sent, to)
    assert sending is not None
    assert receiving is not None
    sending.wait()
    receiving.wait()


class SmallLanguageModel(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(256, width)
        self.places = nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, S] → logits [B, S, 256]."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.embedding(tokens) + self.places(torch.arange(length))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


class Text:
    """Python's own library sources, as bytes; ranks read different places."""

    def __init__(self, rank: int, batch: int, seq: int) -> None:
        folder = Path(os.__file__).parent
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._batch, self._seq = batch, seq
        self._chance = torch.Generator().manual_seed(100 + rank)

    def batch(self) -> Tensor:
        """The next micro-batch, [B, S + 1]."""
        places = torch.randint(
            len(self._bytes) - self._seq - 1, (self._batch,), generator=self._chance
        )
        return torch.stack(
            [self._bytes[place : place + self._seq + 1].long() for place in places.tolist()]
        )


def recipe_of(world: int, settings: dict[str, Any]) -> Recipe:
    return Recipe(
        model=RecipeModel(config="none"),
        data=RecipeData(path="none", seq=1),
        layout=Layout(dp=world, global_batch=world, precision="fp32"),
        optimizer=RecipeOptimizer(learning_rate=0.0, final_learning_rate=0.0),
        communication=RecipeCommunication(**settings),
    )


def training(argument: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Steps of a model with each way to agree on gradients."""
    result: dict[str, Any] = {"link": link(argument, ranks), "runs": {}}
    for name, settings in argument["ways"].items():
        result["runs"][name] = _train(argument, recipe_of(ranks.world, settings), ranks)
    model = SmallLanguageModel(argument["width"], argument["layers"])
    result["matrices"] = [
        [parameter.shape[0], parameter.numel() // parameter.shape[0]]
        for parameter in model.parameters()
        if parameter.ndim > 1
    ]
    result["other_elements"] = sum(
        parameter.numel() for parameter in model.parameters() if parameter.ndim == 1
    )
    return result


def _train(argument: dict[str, Any], recipe: Recipe, ranks: Ranks) -> dict[str, Any]:
    bare = SmallLanguageModel(argument["width"], argument["layers"])
    local = recipe.communication.sync_every > 1
    model: Any = bare
    wire: Any
    if local:
        wire = LocalSgd([bare], recipe, ranks)
    else:
        model = DistributedDataParallel(bare, bucket_cap_mb=1000)
        wire = attach(model, recipe, ranks)
    optimizer = torch.optim.AdamW(bare.parameters(), lr=argument["learning_rate"], fused=True)
    text = Text(ranks.rank, argument["batch"], argument["seq"])
    steps, losses, sent, on_the_cable = [], [], [], []
    for _ in range(argument["steps"]):
        dist.barrier()
        cable, started = int(SENT.read_text()) if SENT.exists() else 0, time.perf_counter()
        losses.append(_step(model, optimizer, text))
        if local:
            wire.after_step()
        steps.append(time.perf_counter() - started)
        sent.append(wire.take().sent_bytes)
        on_the_cable.append(int(SENT.read_text()) - cable if SENT.exists() else 0)
    skipped = argument["skipped"]
    last = losses[-max(1, len(losses) // 10) :]
    loss = torch.tensor(statistics.mean(last))
    dist.all_reduce(loss)
    return {
        "step_seconds": statistics.mean(steps[skipped:])
        if local
        else statistics.median(steps[skipped:]),
        "sent_bytes": statistics.mean(sent[skipped:]),
        "cable_bytes": statistics.mean(on_the_cable[skipped:]),
        "loss": loss.item() / ranks.world,
        "compute_seconds": _compute_seconds(argument, ranks),
        "encode_seconds": 0.0 if local else _encode_seconds(bare, recipe, ranks),
    }


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, text: Text) -> float:
    tokens = text.batch()
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss.item()


def _compute_seconds(argument: dict[str, Any], ranks: Ranks) -> float:
    """A step of this rank without any exchange, while the others do the same."""
    if not argument["parts"]:
        return 0.0
    model = SmallLanguageModel(argument["width"], argument["layers"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    text = Text(ranks.rank, argument["batch"], argument["seq"])
    seconds = []
    for _ in range(5):
        dist.barrier()
        started = time.perf_counter()
        _step(model, optimizer, text)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _encode_seconds(model: nn.Module, recipe: Recipe, ranks: Ranks) -> float:
    """An exchange of this model's gradients with oneself: all but the travel."""
    groups = [dist.new_group([rank]) for rank in range(ranks.world)]
    scheme = make_scheme(model, recipe, CountedGroup(groups[ranks.rank]))
    if scheme is None:
        return 0.0
    named = dict(model.named_parameters())
    seconds = []
    for _ in range(4):
        buffer = torch.cat([parameter.grad.view(-1) for parameter in named.values()])  # type: ignore[union-attr]
        views = buffer.split([parameter.numel() for parameter in named.values()])
        gradients = tuple(
            view.view_as(parameter) for view, parameter in zip(views, named.values(), strict=True)
        )
        bucket = Bucket(
            position=0, names=tuple(named), buffer=buffer, gradients=gradients, last=True
        )
        dist.barrier()
        started = time.perf_counter()
        scheme.reduce(bucket)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def main() -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(PermissionError):
        os.nice(-15)  # what else the machine does must not stand between two steps
    subject, argument = sys.argv[1], json.loads(sys.argv[2])
    world = int(os.environ["WORLD_SIZE"])
    ranks = join(Layout(dp=world, global_batch=world, precision="fp32"), timeout_seconds=120)
    subjects = {"collectives": collectives, "crossing": crossing, "training": training}
    result = subjects[subject](argument, ranks)
    dist.barrier()
    if ranks.rank == 0:
        print(json.dumps(result), flush=True)
    leave()
    # Python's shutdown aborts now and then while gloo's threads live.
    os._exit(0)


if __name__ == "__main__":
    main()
