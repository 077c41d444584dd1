"""Several hosts on one machine, joined by shaped links: predictions of theory against what happens.

    python bench/shaped_network.py [collectives] [crossing] [training] [loss]        (as root)

`collectives`: all-reduces of gloo by size, hosts and rate, against
`cost/training/collectives.py` with the bandwidth and step latency measured on the same links.
`crossing`: where a ring overtakes recursive doubling, on links with a delay. `training`: steps of a
small language model with each way to agree on gradients, against `cost/gradient_compression.py`,
from the measured compute, encoding and link alone. `loss`: what each way does to the loss, on
unshaped links.

Each prints a table in Markdown; `docs/results/shaped_network.md` holds those of one machine.
Links get a bandwidth but no added delay (`namespaces.py`), but for `crossing` (`distant_hosts.py`).
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distant_hosts import DistantHosts
from namespaces import Hosts, NotPermitted, bytes_per_second

from ridgeline.cost.collective_volume import (
    Fabric,
    all_reduce_bytes,
    doubling_all_reduce_seconds,
    ring_all_reduce_seconds,
    ring_from_bytes,
)
from ridgeline.cost.gradient_compression import Compression, Gradient, exchange, local_step_seconds
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.collectives import all_reduce_seconds, group_of
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.setting import Setting, setting_of
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models.presets import preset
from ridgeline.records.layout import Layout

RANK = str(Path(__file__).parent / "scripts" / "shaped_rank.py")
PORT = "29511"
LIMIT_SECONDS = 200.0
STREAM_SECONDS = 0.5
SIZES = [2**12, 2**16, 2**18, 2**20, 2**22, 2**23]
CROSSING = [("50mbit", 0.01), ("100mbit", 0.01), ("100mbit", 0.02), ("200mbit", 0.005)]
"""Rate and delay of the links between which ring and doubling are compared."""
CROSSING_HOSTS = 4
AROUND = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Of the size at which theory expects them level."""
RATES = {"100mbit": 12.5e6, "1gbit": 125e6}
FREE = "not shaped"
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "bf16": {"compression": "bf16"},
    "int8": {"compression": "int8"},
    "sign": {"compression": "sign"},
    "powersgd": {"compression": "powersgd", "powersgd_rank": 4},
    "topk": {"compression": "topk", "kept_share": 0.01},
    "randomk": {"compression": "randomk", "kept_share": 0.01},
    "local SGD, 8 steps": {"sync_every": 8},
}
THEORY = {
    "none": Compression(scheme="none"),
    "bf16": Compression(scheme="bf16"),
    "int8": Compression(scheme="int8", two_step=True),
    "sign": Compression(scheme="sign", group=1024, two_step=True),
    "powersgd": Compression(scheme="powersgd", rank=4),
    "topk": Compression(scheme="top-k", density=0.01),
    "randomk": Compression(scheme="random-k", density=0.01),
}


def measure(
    world: int,
    rate: str | None,
    subject: str,
    argument: dict[str, Any],
    delay_seconds: float = 0.0,
) -> Any:
    """What rank 0 printed."""
    with (
        DistantHosts(world, rate=str(rate), delay_seconds=delay_seconds)
        if delay_seconds
        else Hosts(world, rate=rate)
    ) as hosts:
        ranks = [
            hosts.start(
                rank,
                [sys.executable, RANK, subject, json.dumps(argument)],
                {
                    "MASTER_ADDR": hosts.address(0),
                    "MASTER_PORT": PORT,
                    "RANK": str(rank),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "WORLD_SIZE": str(world),
                    "OMP_NUM_THREADS": "1",
                    "PEER": hosts.address(1),
                },
            )
            for rank in range(world)
        ]
        output = [process.communicate(timeout=LIMIT_SECONDS) for process in ranks]
    for process, (_, errors) in zip(ranks, output, strict=True):
        if process.returncode:
            raise SystemExit(f"a rank ended with {process.returncode}:\n{errors[-3000:]}")
    return json.loads(output[0][0].splitlines()[-1])


def site(world: int, link: dict[str, float]) -> Setting:
    """Hosts with one device each, as `collectives.py` sees them: nothing calibrated."""
    plain = Coefficients(gemm={"bf16": 1.0}, network=1.0, congestion=0.0, bulk_latency=1.0)
    layouts = stack_layouts([Layout(dp=world, global_batch=world)])
    setting = setting_of(
        preset("Llama-3-8B"), parse_cluster("8xH100"), Workload(seq=1), layouts, plain
    )
    numbers = {
        "domain_size": 1.0,
        "domain_bytes_per_second": math.inf,
        "domain_latency_seconds": 0.0,
        "network_bytes_per_second": link["bytes_per_second"],
        "network_latency_seconds": link["step_latency_seconds"],
    }
    arrays = {name: np.array([value]) for name, value in numbers.items()}
    return replace(setting, site=replace(setting.site, **arrays))


def collectives() -> None:
    print(
        "| link | hosts | bandwidth | latency | host's work | bytes | gloo | predicted | off |"
        "\n|---|---|---|---|---|---|---|---|---|"
    )
    for rate, nominal in RATES.items():
        for world in (2, 3, 4):
            seen = measure(
                world,
                rate,
                "collectives",
                {
                    "stream_bytes": int(nominal * STREAM_SECONDS),
                    "seconds_each": 0.8,
                    "gloo": SIZES,
                },
            )
            _print_all_reduces(rate, world, seen)


def crossing() -> None:
    """Where a ring overtakes recursive doubling, on links with delay."""
    print(
        "| link | delay | bandwidth | exchange | bytes | ring | predicted | doubling | predicted |"
        "\n|---|---|---|---|---|---|---|---|---|"
    )
    levels = []
    for rate, delay in CROSSING:
        nominal = bytes_per_second(rate)
        # gloo's exchange is two ways of the link: "ready", then the bytes.
        level = ring_from_bytes(CROSSING_HOSTS, nominal, 2.0 * delay)
        seen = measure(
            CROSSING_HOSTS,
            rate,
            "crossing",
            {
                "stream_bytes": int(nominal * STREAM_SECONDS * 2),
                "seconds_each": 0.6,
                "sizes": [int(level * share) // 16 * 16 for share in AROUND],
            },
            delay_seconds=delay,
        )
        _print_both(rate, delay, seen)
        found = crossing_of(seen["ring"], seen["doubling"])
        speed = seen["link"]["bytes_per_second"]
        expected = ring_from_bytes(CROSSING_HOSTS, speed, seen["exchange_seconds"])
        levels.append((rate, delay, found, expected))
    print("\n| link | delay | ring is faster from | predicted | off |\n|---|---|---|---|---|")
    for rate, delay, found, expected in levels:
        off = f"{expected / found - 1:+.0%}" if found > 0.0 else "-"
        print(f"| {rate} | {delay * 1e3:g} ms | {_size(found)} | {_size(expected)} | {off} |")


def _print_all_reduces(rate: str, world: int, seen: dict[str, Any]) -> None:
    link, host = seen["link"], seen["gloo_host_seconds"]
    speed, latency = link["bytes_per_second"], link["step_latency_seconds"]
    setting = site(world, link)
    group = group_of(setting, np.array([float(world)]), np.array([1.0]))
    for size, seconds in seen["gloo"].items():
        travel = float(all_reduce_seconds(setting, np.array([float(size)]), group)[0])
        predicted = max(host, travel)
        print(
            f"| {rate} | {world} | {speed / 1e6:.1f} MB/s | {latency * 1e6:.0f} µs"
            f" | {host * 1e3:.2f} ms | {_size(float(size))} | {seconds * 1e3:.2f} ms"
            f" | {predicted * 1e3:.2f} ms | {predicted / seconds - 1:+.0%} |",
            flush=True,
        )


def _print_both(rate: str, delay: float, seen: dict[str, Any]) -> None:
    speed, exchange = seen["link"]["bytes_per_second"], seen["exchange_seconds"]
    ways = {"ring": ring_all_reduce_seconds, "doubling": doubling_all_reduce_seconds}
    for size in seen["ring"]:
        cells = []
        for name, formula in ways.items():
            predicted = formula(CROSSING_HOSTS, float(size), speed, exchange)
            cells += [f"{seen[name][size] * 1e3:.1f} ms", f"{predicted * 1e3:.1f} ms"]
        print(
            f"| {rate} | {delay * 1e3:g} ms | {speed / 1e6:.1f} MB/s | {exchange * 1e3:.2f} ms"
            f" | {_size(float(size))} | {' | '.join(cells)} |",
            flush=True,
        )


def crossing_of(ring: dict[str, float], doubling: dict[str, float]) -> float:
    """Bytes at which the two take equally long, by the lines that each one's times lie on.

    The curves meet at a narrow angle: read off two neighbouring sizes, 2 % of noise would move the
    crossing by 15 %. Not a number where the ring never overtakes.
    """
    ring_latency, ring_slope = _line(ring)
    latency, slope = _line(doubling)
    return (ring_latency - latency) / (slope - ring_slope) if slope > ring_slope else math.nan


def _line(seconds: dict[str, float]) -> tuple[float, float]:
    """Intercept and slope: the median over all pairs (Theil and Sen)."""
    points = sorted((float(size), one) for size, one in seconds.items())
    slope = float(np.median([(d - b) / (c - a) for (a, b), (c, d) in combinations(points, 2)]))
    return float(np.median([one - slope * size for size, one in points])), slope


def training() -> None:
    print(
        "| link | way | sent by a rank | on its cable | encoding | step | predicted | off |"
        "\n|---|---|---|---|---|---|---|---|"
    )
    winners = []
    for rate in (*RATES, None):
        nominal = RATES.get(rate or "", 500e6)
        seen = measure(
            2,
            rate,
            "training",
            {
                "stream_bytes": int(nominal * STREAM_SECONDS),
                "ways": WAYS,
                "width": 256,
                "layers": 4,
                "batch": 4,
                "seq": 128,
                "steps": 10 if rate == "100mbit" else 24,
                "skipped": 2,
                "learning_rate": 1e-3,
                "parts": True,
            },
        )
        predicted = {name: _predict(name, seen) for name in WAYS}
        measured = {name: run["step_seconds"] for name, run in seen["runs"].items()}
        for name, run in seen["runs"].items():
            print(
                f"| {rate or FREE} | {name} | {_size(run['sent_bytes'])}"
                f" | {_size(run['cable_bytes'])} | {run['encode_seconds'] * 1e3:.1f} ms"
                f" | {measured[name] * 1e3:.0f} ms | {predicted[name] * 1e3:.0f} ms"
                f" | {predicted[name] / measured[name] - 1:+.0%} |",
                flush=True,
            )
        winners.append((rate or FREE, measured, predicted))
    print(
        "\n| link | fastest exchange of gradients | predicted | faster than plain | predicted |"
        "\n|---|---|---|---|---|"
    )
    for rate, measured, predicted in winners:
        print(
            f"| {rate} | {_fastest(measured)} | {_fastest(predicted)}"
            f" | {_ahead(measured)} | {_ahead(predicted)} |"
        )


def _predict(name: str, seen: dict[str, Any]) -> float:
    """A step from compute, encoding and the link; nothing is hidden in so few buckets."""
    link, run = seen["link"], seen["runs"][name]
    compute = float(np.median([one["compute_seconds"] for one in seen["runs"].values()]))
    fabric = Fabric(
        domain_size=1,
        domain_bytes_per_second=math.inf,
        network_bytes_per_second=link["bytes_per_second"],
        network_latency_seconds=link["step_latency_seconds"],
    )
    gradient = Gradient(
        matrices=tuple((rows, columns) for rows, columns in seen["matrices"]),
        other_elements=seen["other_elements"],
    )
    if name not in THEORY:
        plain = exchange(gradient, THEORY["none"], 2, fabric, 1.0)
        return local_step_seconds(compute, plain.travel_seconds, WAYS[name]["sync_every"])
    one = exchange(gradient, THEORY[name], 2, fabric, 1.0, encode_seconds=run["encode_seconds"])
    return one.step_seconds(compute, 0.0)


def _fastest(steps: dict[str, float]) -> str:
    return min(THEORY, key=lambda name: steps[name])


def _ahead(steps: dict[str, float]) -> str:
    ahead = [name for name in THEORY if steps[name] < steps["none"]]
    return ", ".join(sorted(ahead, key=lambda name: steps[name])) or "none"


def loss() -> None:
    seen = measure(
        2,
        None,
        "training",
        {
            "stream_bytes": 2**26,
            "ways": WAYS | {"DiLoCo, 8 steps": {"sync_every": 8, "outer": "diloco"}},
            "width": 128,
            "layers": 2,
            "batch": 8,
            "seq": 64,
            "steps": 200,
            "skipped": 20,
            "learning_rate": 2e-3,
            "parts": False,
        },
    )
    elements = seen["other_elements"] + sum(rows * columns for rows, columns in seen["matrices"])
    whole = all_reduce_bytes(2, 4.0 * elements)
    print("| way | sent by a rank in a step | of plain | loss |\n|---|---|---|---|")
    for name, run in seen["runs"].items():
        print(
            f"| {name} | {_size(run['sent_bytes'])} | 1/{whole / run['sent_bytes']:.1f}"
            f" | {run['loss']:.3f} |"
        )


def _size(number: float) -> str:
    if math.isinf(number) or math.isnan(number):
        return "never"
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} B"


def main() -> None:
    subjects = {
        "collectives": collectives,
        "crossing": crossing,
        "training": training,
        "loss": loss,
    }
    wanted = sys.argv[1:] or list(subjects)
    if not set(wanted) <= set(subjects):
        raise SystemExit(f"name some of {', '.join(subjects)}")
    # Namespaces go when the block ends, also when somebody else ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Linux"
        f" {platform.release()}, torch {torch.__version__}\n"
    )
    try:
        for name in wanted:
            subjects[name]()
            print()
    except NotPermitted as error:
        print(f"skipped: namespaces cannot be made here: {error}")


if __name__ == "__main__":
    main()
