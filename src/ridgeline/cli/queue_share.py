"""`ridgeline queue share workloads.toml` splits GPUs among models that do not each need one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.show import Html, Json
from ridgeline.errors import InputError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.queue.share.slots import Mode
    from ridgeline.queue.share.workload import ServedWorkload
    from ridgeline.records.queue_sharing import SharePlan


def queue_share(
    workloads: Annotated[
        Path,
        typer.Argument(metavar="WORKLOADS", help="TOML with a [[workload]] each, or CSV."),
    ],
    device: Annotated[
        list[str],
        typer.Option(metavar="DEVICE", help="A device that may be used; repeatable."),
    ],
    allow: Annotated[
        str,
        typer.Option(metavar="WAYS", help="Ways of sharing that may be used."),
    ] = "mig,whole,mps,time-slicing",
    headroom: Annotated[
        float, typer.Option(help="Part of the GPUs' work that is left free for bursts.")
    ] = 0.2,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE=USD", help="Price of a GPU-hour; repeatable."),
    ] = None,
    mps_loss: Annotated[
        float | None, typer.Option(help="Part of a GPU's throughput that MPS costs.")
    ] = None,
    time_slicing_loss: Annotated[
        float | None, typer.Option(help="Part of a GPU's throughput that time-slicing costs.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = 8,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the workloads' Deployments.")
    ] = "default",
    out: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Also write manifests into a folder."),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Split GPUs by MIG, MPS or time-slicing: the cheapest that serve all, and the manifests."""
    from ridgeline.cli.show import show_answer
    from ridgeline.queue.readers.workloads import read_workloads
    from ridgeline.queue.share.answer import share_gpus
    from ridgeline.report.views.queue_sharing import queue_sharing_document

    asked = read_workloads(workloads)
    losses = {"mps": mps_loss, "time-slicing": time_slicing_loss}
    found = share_gpus(
        asked,
        device,
        allow=_ways(allow),
        headroom=headroom,
        prices=_prices(price or []),
        losses={mode: share for mode, share in losses.items() if share is not None},
        gpus_per_node=gpus_per_node,
    )
    if out is not None:
        _write(out, found, asked, gpus_per_node, namespace)
    show_answer(found, queue_sharing_document(found, workloads.name), json=json, html=html)


def _ways(text: str) -> list[Mode]:
    from ridgeline.queue.share.slots import MODES

    named = [one.strip() for one in text.split(",") if one.strip()]
    for one in named:
        if one not in MODES:
            raise InputError(f"--allow {one}: known are {', '.join(MODES)}")
    if not named:
        raise InputError(f"--allow names no way of sharing; known are {', '.join(MODES)}")
    return [mode for mode in MODES if mode in named]


def _prices(given: list[str]) -> dict[str, float]:
    import math

    prices = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0.0 < price < math.inf:
            raise InputError(f"--price {text}: write DEVICE=USD, as h100=2.5")
        prices[name.strip()] = price
    return prices


def _write(
    folder: Path, plan: SharePlan, workloads: list[ServedWorkload], gpus_per_node: int, where: str
) -> None:
    """Manifests that our own check takes, and the lines that label nodes."""
    from ridgeline.cli.show import say, told, write_text
    from ridgeline.launch.check import check_manifests, read_text
    from ridgeline.launch.kube.manifest import as_yaml
    from ridgeline.queue.share.manifests import deployments, gpu_configs, label_lines

    files = {
        "gpu-configs.yaml": gpu_configs(plan, as_yaml, gpus_per_node=gpus_per_node),
        "workloads.yaml": deployments(plan, workloads, namespace=where),
    }
    with told("--write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {name: as_yaml(documents) for name, documents in files.items() if documents}
    for name, text in texts.items():
        for verdict in check_manifests(read_text(text, name)):
            if not verdict.runs:
                first = verdict.problems[0]
                raise RidgelineError(
                    f"{name}: {verdict.kind} {verdict.name}: {first.field}: {first.message}: a"
                    " manifest of ours does not pass our check; please report the command"
                )
    for name, text in {**texts, "label-nodes.txt": "\n".join(label_lines(plan)) + "\n"}.items():
        write_text("--write", folder / name, text)
        say(f"{folder / name} written", err=True)
