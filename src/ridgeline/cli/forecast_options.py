"""What is to be forecast: options of the commands that compute instead of running.

`predict`, `plan`, `simulate` and `validate` share them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.batching.kept_tokens import KeptTokens
    from ridgeline.hardware.cluster import Cluster
    from ridgeline.models.vision.network import VisionNetwork
    from ridgeline.plan.training.trained import Trained
    from ridgeline.plan.vision.measured import MeasuredImages
    from ridgeline.records.layout import Offload

_MODEL = typer.Option(
    help="A preset such as Llama-3-8B or resnet50, a config.json, or sizes as layers=…,hidden=…; a"
    " network for images also as script.py:FUNCTION, timm:NAME or a .pt2 file."
)
Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
PublishedTable = Annotated[
    Path, typer.Argument(metavar="TABLE.csv", help="Published runs, one a row.")
]

# Of a training run.
SequenceLength = Annotated[
    int | None, typer.Option("--seq", help="Tokens in one sequence; images have their own.")
]
GlobalBatch = Annotated[
    int | None, typer.Option(help="Sequences or images in one optimizer step, over all devices.")
]
Software = Annotated[str, typer.Option(help="Class of software: torch, megatron, jax, legacy, ….")]

# Of a network for images.
IMAGES_PANEL = "Networks for images"
TOKENS_PANEL = "Language models"
TRAINED_PANEL = "What is trained, and how it is kept"
ImageSize = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="PIXELS",
        help="Height and width as 224 or 384x640. Default: the model's own.",
        rich_help_panel=IMAGES_PANEL,
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="For script.py:NAME: a sample of each argument of forward (.npz, .safetensors, .pt).",
        rich_help_panel=IMAGES_PANEL,
    ),
]
MemoryFormat = Annotated[
    str | None,
    typer.Option(
        metavar="contiguous|channels_last",
        help="How activations lie in memory. Default: contiguous, as PyTorch does.",
        rich_help_panel=IMAGES_PANEL,
    ),
]
OptimizerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The optimizer: adamw, adamw8bit, adafactor, lion, muon or sgd; with images adamw or"
        " sgd. Default: adamw, with images sgd.",
        rich_help_panel=TRAINED_PANEL,
    ),
]
AdapterKind = Annotated[
    Literal["lora", "qlora"] | None,
    typer.Option(
        "--adapter",
        help="Train adapters beside frozen weights, which qlora keeps in four bits.",
        rich_help_panel=TRAINED_PANEL,
    ),
]
AdapterRank = Annotated[
    int | None,
    typer.Option(help="With --adapter: its rank. Default: 16.", rich_help_panel=TRAINED_PANEL),
]
AdapterTargets = Annotated[
    str | None,
    typer.Option(
        metavar="q,v,…",
        help="With --adapter: its linear layers, of q, k, v, o, gate, up, down. Default: all.",
        rich_help_panel=TRAINED_PANEL,
    ),
]
KeptWeights = Annotated[
    Literal["fp32", "bf16"] | None,
    typer.Option(
        "--weights",
        help="How weights are kept. Default: fp32 beside a 16-bit copy; with --adapter bf16.",
        rich_help_panel=TRAINED_PANEL,
    ),
]
Images = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Images of one epoch, as 1.28M: adds the whole run, money, energy.",
        rich_help_panel=IMAGES_PANEL,
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(help="Passes over --images. Default: 1.", rich_help_panel=IMAGES_PANEL),
]
Cores = Annotated[
    float | None,
    typer.Option(
        "--cores-per-device",
        help="Processor cores that decode images, for each device. Default: enough.",
        rich_help_panel=IMAGES_PANEL,
    ),
]
RuntimeName = Annotated[
    str, typer.Option("--software", help="What runs it: eager, compile, tensorrt, onnxruntime, ….")
]
Threads = Annotated[int | None, typer.Option(help="Threads of a processor. Default: all cores.")]

# Of a served model.
Gpu = Annotated[str, typer.Option(help="A device such as H100; see `ridgeline hardware --list`.")]
TensorParallel = Annotated[int, typer.Option(help="Devices of one replica.")]
Weights = Annotated[
    str, typer.Option(help="How weights are held: bf16, fp8, int8, int4-awq, mxfp4, ….")
]
Cache = Annotated[str, typer.Option(help="How keys and values are held. Default: as is usual.")]
EngineClass = Annotated[
    str, typer.Option(help="Class of engine: python (vLLM), sglang, native (TensorRT-LLM), ….")
]
PromptTokens = Annotated[float, typer.Option(help="Tokens of a prompt, mean.")]
AnswerTokens = Annotated[float, typer.Option(help="Tokens of a completion, mean.")]
Drafts = Annotated[int, typer.Option(help="Tokens guessed per sequence and step.")]
Acceptance = Annotated[float, typer.Option(help="Chance that a draft is accepted.")]
DraftCost = Annotated[
    float, typer.Option(help="Time of guessing one token for all, over that of a step.")
]
DraftTree = Annotated[
    int, typer.Option(metavar="N", help="A tree of N tokens is guessed; needs --accuracies.")
]
Accuracies = Annotated[
    str,
    typer.Option(
        metavar="FIRST,SECOND,…",
        help="How often guesses for each place are right, by rank: 0.6x0.15x0.08,0.4x0.12.",
    ),
]

# What is not typical of a cluster.
DomainSize = Annotated[int | None, typer.Option(help="Devices that the fast fabric joins.")]
DomainBandwidth = Annotated[
    float | None,
    typer.Option(
        metavar="GB/S", help="The fast fabric of one device, per direction: 450 for an H100."
    ),
]
Network = Annotated[
    float | None, typer.Option(metavar="GBIT/S", help="The network of one device, per direction.")
]
Oversubscription = Annotated[
    float | None, typer.Option(help="How far the network's core is oversubscribed; 1 is not.")
]

Disk = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --offload …-on-disk: a folder whose disk hardware --probe measured.",
        rich_help_panel=TOKENS_PANEL,
    ),
]
DiskBandwidth = Annotated[
    float | None,
    typer.Option(
        metavar="GB/S",
        help="In place of --disk: what one device's share of the disks reads and writes.",
        rich_help_panel=TOKENS_PANEL,
    ),
]


def trained_of(
    optimizer: str | None,
    adapter: Literal["lora", "qlora"] | None,
    rank: int | None,
    targets: str | None,
    weights: Literal["fp32", "bf16"] | None,
) -> Trained:
    """What is trained, as the options say.

    Raises:
        InputError: An option of adapters stands without `--adapter`.
    """
    from ridgeline.plan.training.trained import WHOLE, Trained, optimizer_called
    from ridgeline.records.recipe_compression import RecipeAdapter

    given = {"--adapter-rank": rank, "--adapter-targets": targets}
    alone = next((name for name, value in given.items() if value is not None), None)
    if adapter is None and alone is not None:
        raise InputError(f"{alone} goes with --adapter; add --adapter lora, or leave it out")
    chosen = None
    if adapter is not None:
        usual = RecipeAdapter(kind=adapter)
        chosen = RecipeAdapter(
            kind=adapter,
            rank=usual.rank if rank is None else rank,
            targets=() if targets is None else tuple(targets.split(",")),
        )
    name = WHOLE.optimizer if optimizer is None else optimizer_called(optimizer).name
    return Trained(adapter=chosen, optimizer=name, weights=weights)


def cluster_of(
    text: str,
    domain_size: int | None,
    domain_bandwidth: float | None,
    network: float | None,
    oversubscription: float | None,
) -> Cluster:
    """The cluster that `--cluster` names, with what the options say of it."""
    from ridgeline.hardware.cluster import gigabits, parse_cluster

    return parse_cluster(
        text,
        domain_size=domain_size,
        domain_bytes_per_second=None if domain_bandwidth is None else domain_bandwidth * 1e9,
        network_bytes_per_second=gigabits(network),
        oversubscription=oversubscription,
    )


def kept_tokens(recent: int | None, first: int) -> KeptTokens | None:
    """What `--kv-recent` and `--kv-first` say; None: tokens see all before them."""
    from ridgeline.batching.kept_tokens import KeptTokens

    return None if recent is None else KeptTokens(recent=recent, first=first)


_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def amount_of(option: str, text: str) -> float:
    """A large number as people write it: 1e12, 300B, 1.28M.

    >>> amount_of("--tokens", "300B"), amount_of("--images", "1.28M")
    (300000000000.0, 1280000.0)
    """
    found = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmbt]?)\s*", text.lower())
    try:
        value = float(found[1]) * _SUFFIXES[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 1e18:
        raise InputError(f"{option} {text}: give a number above 0, as 1e12, 300B or 1.28M")
    return value


def network_seen(
    model: str, image: str | None, inputs: Path | None = None
) -> str | VisionNetwork | None:
    """The network for images that `--model` means; None for a model of tokens.

    Presets are meant by their name; a script's, a library's or an exported program is built and
    counted for images of this size.
    """
    from ridgeline.measure.network.source import is_module, read_network
    from ridgeline.plan.vision.question import vision_name

    if is_module(model):
        return read_network(model, image_size_of(image), inputs)
    if inputs is not None:
        raise InputError(f"--inputs {inputs}: only a model of a script takes it, as script.py:NAME")
    return model if vision_name(model) is not None else None


def measured_images(paths: Sequence[Path]) -> list[MeasuredImages]:
    """What the files of `--measured` say of a network for images.

    Raises:
        InputError: A file cannot be read, or says nothing.
    """
    from ridgeline.plan.vision.measured import read_measured

    return read_measured(paths)


def image_size_of(text: str | None) -> tuple[int, int] | None:
    """Height and width of `--image`.

    >>> image_size_of("224"), image_size_of("384x640"), image_size_of(None)
    ((224, 224), (384, 640), None)
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,5})(?:\s*[xX×]\s*(\d{1,5}))?\s*", text)
    if found is None or int(found[1]) < 1 or int(found[2] or 1) < 1:
        raise InputError(f"--image {text}: give pixels, as 224, or height x width, as 384x640")
    return int(found[1]), int(found[2] or found[1])


def with_disk(
    place: Cluster, offload: Offload | None, folder: Path | None, bandwidth: float | None
) -> Cluster:
    """The cluster with the disk that `Disk` and `DiskBandwidth` tell of.

    Raises:
        InputError: Nothing lies on disk, both are given, or the disk was not probed.
    """
    if offload is None or not offload.endswith("-on-disk"):
        if folder is not None or bandwidth is not None:
            raise InputError(
                "--disk and --disk-bandwidth go with --offload optimizer-on-disk or all-on-disk"
            )
        return place
    if folder is not None and bandwidth is not None:
        raise InputError("--disk and --disk-bandwidth say the same thing; give one")
    from ridgeline.plan.training.disk import cluster_with_disk

    return cluster_with_disk(place, folder, None if bandwidth is None else bandwidth * 1e9)
