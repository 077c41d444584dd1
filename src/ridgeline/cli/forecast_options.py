"""What is to be forecast: options of the commands that compute instead of running.

`predict`, `plan`, `simulate` and `validate` share them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.hardware.cluster import Cluster

_MODEL = typer.Option(help="A preset, a config.json, or sizes as layers=…,hidden=….")
Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
PublishedTable = Annotated[
    Path, typer.Argument(metavar="TABLE.csv", help="Published runs, one a row.")
]

# Of a training run.
SequenceLength = Annotated[
    int | None, typer.Option("--seq", help="Tokens in one sequence; images have their own.")
]
GlobalBatch = Annotated[int, typer.Option(help="Sequences or images in one optimizer step.")]
Software = Annotated[str, typer.Option(help="Class of software: torch, megatron, jax, legacy, ….")]

# Of a served model.
Gpu = Annotated[str, typer.Option(help="A device such as H100; see `ridgeline hardware --list`.")]
TensorParallel = Annotated[int, typer.Option(help="Devices of one replica.")]
Weights = Annotated[
    str, typer.Option(help="How weights are held: bf16, fp8, int8, int4-awq, mxfp4, ….")
]
Cache = Annotated[str, typer.Option(help="How keys and values are held. Default: as is usual.")]
EngineClass = Annotated[
    str, typer.Option(help="Class of engine: python (vLLM), native (TensorRT-LLM), ….")
]
PromptTokens = Annotated[float, typer.Option(help="Tokens of a prompt, mean.")]
AnswerTokens = Annotated[float, typer.Option(help="Tokens of a completion, mean.")]

# What is not typical of a cluster.
DomainSize = Annotated[int | None, typer.Option(help="Devices that the fast fabric joins.")]
Network = Annotated[
    float | None, typer.Option(metavar="GBIT/S", help="The network of one device, per direction.")
]
Oversubscription = Annotated[
    float | None, typer.Option(help="How far the network's core is oversubscribed; 1 is not.")
]


def cluster_of(
    text: str, domain_size: int | None, network: float | None, oversubscription: float | None
) -> Cluster:
    """The cluster that `--cluster` names, with what the options say of it."""
    from ridgeline.hardware.cluster import parse_cluster

    return parse_cluster(
        text,
        domain_size=domain_size,
        network_bytes_per_second=None if network is None else network * 1e9 / 8,
        oversubscription=oversubscription,
    )
