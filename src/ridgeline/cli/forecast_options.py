"""What is to be forecast: options of the commands that compute instead of running.

`predict`, `plan`, `simulate` and `validate` share them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.cli.option_groups import OptionGroup
from ridgeline.errors import InputError

if TYPE_CHECKING:
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
of_images = functools.partial(typer.Option, rich_help_panel="Networks for images")
of_tokens = functools.partial(typer.Option, rich_help_panel="Language models")
_of_trained = functools.partial(typer.Option, rich_help_panel="What is trained, and how it is kept")
ImageSize = Annotated[
    str | None,
    of_images(
        "--image",
        metavar="PIXELS",
        help="Height and width as 224 or 384x640. Default: the model's own.",
    ),
]
Inputs = Annotated[
    Path | None,
    of_images(
        metavar="FILE",
        help="For script.py:NAME: a sample of each argument of forward (.npz, .safetensors, .pt).",
    ),
]
MemoryFormat = Annotated[
    Literal["contiguous", "channels_last"] | None,
    of_images(
        help="How activations lie in memory. Default: contiguous, as PyTorch does.",
    ),
]
Images = Annotated[
    str | None,
    of_images(
        metavar="NUMBER", help="Images of one epoch, as 1.28M: adds the whole run, money, energy."
    ),
]
Epochs = Annotated[float | None, of_images(help="Passes over --images. Default: 1.")]
Cores = Annotated[
    float | None,
    of_images(
        "--cores-per-device",
        help="Processor cores that decode images, for each device. Default: enough.",
    ),
]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
RuntimeName = Annotated[
    str, typer.Option("--software", help="What runs it: eager, compile, tensorrt, onnxruntime, ….")
]
Threads = Annotated[int | None, typer.Option(help="Threads of a processor. Default: all cores.")]

# Of a served model.
Gpu = Annotated[
    str,
    typer.Option(metavar="DEVICE", help="A device such as H100; see `ridgeline hardware --list`."),
]
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


class TrainedOptions(OptionGroup, frozen=True, kw_only=True):
    """What is trained, and how it is kept."""

    optimizer: Annotated[
        str | None,
        _of_trained(
            metavar="NAME",
            help="The optimizer: adamw, adamw8bit, adafactor, lion, muon or sgd; with images adamw"
            " or sgd. Default: adamw, with images sgd.",
        ),
    ] = None
    adapter: Annotated[
        Literal["lora", "qlora"] | None,
        _of_trained(help="Train adapters beside frozen weights, which qlora keeps in four bits."),
    ] = None
    adapter_rank: Annotated[
        int | None, _of_trained(help="With --adapter: its rank. Default: 16.")
    ] = None
    adapter_targets: Annotated[
        str | None,
        _of_trained(
            metavar="q,v,…",
            help="With --adapter: its linear layers, of q, k, v, o, gate, up, down. Default: all.",
        ),
    ] = None
    weights: Annotated[
        Literal["fp32", "bf16"] | None,
        _of_trained(
            help="How weights are kept. Default: fp32 beside a 16-bit copy; with --adapter bf16."
        ),
    ] = None

    def trained(self) -> Trained:
        """What is trained, as the options say.

        Raises:
            InputError: An option of adapters stands without `--adapter`.
        """
        from ridgeline.plan.training.trained import WHOLE, Trained, optimizer_called
        from ridgeline.records.recipe_compression import RecipeAdapter

        given = {"--adapter-rank": self.adapter_rank, "--adapter-targets": self.adapter_targets}
        alone = next((name for name, value in given.items() if value is not None), None)
        if self.adapter is None and alone is not None:
            raise InputError(f"{alone} goes with --adapter; add --adapter lora, or leave it out")
        chosen = None
        if self.adapter is not None:
            usual = RecipeAdapter(kind=self.adapter)
            chosen = RecipeAdapter(
                kind=self.adapter,
                rank=usual.rank if self.adapter_rank is None else self.adapter_rank,
                targets=()
                if self.adapter_targets is None
                else tuple(self.adapter_targets.split(",")),
            )
        named = self.optimizer
        name = WHOLE.optimizer if named is None else optimizer_called(named).name
        return Trained(adapter=chosen, optimizer=name, weights=self.weights)


class ClusterOptions(OptionGroup, frozen=True, kw_only=True):
    """What is not typical of a cluster."""

    domain_size: Annotated[int | None, typer.Option(help="Devices that the fast fabric joins.")] = (
        None
    )
    domain_bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="GB/S", help="The fast fabric of one device, per direction: 450 for an H100."
        ),
    ] = None
    network: Annotated[
        float | None,
        typer.Option(metavar="GBIT/S", help="The network of one device, per direction."),
    ] = None
    oversubscription: Annotated[
        float | None, typer.Option(help="How far the network's core is oversubscribed; 1 is not.")
    ] = None

    def cluster(self, text: str) -> Cluster:
        """The cluster that `--cluster` names, with what the options say of it."""
        from ridgeline.hardware.cluster import gigabits, parse_cluster

        fabric = self.domain_bandwidth
        return parse_cluster(
            text,
            domain_size=self.domain_size,
            domain_bytes_per_second=None if fabric is None else fabric * 1e9,
            network_bytes_per_second=gigabits(self.network),
            oversubscription=self.oversubscription,
        )


class DiskOptions(OptionGroup, frozen=True, kw_only=True):
    """The disk that an optimizer's state, or all of a training's, may lie on."""

    disk: Annotated[
        Path | None,
        of_tokens(
            metavar="DIR",
            help="With --offload …-on-disk: a folder whose disk hardware --probe measured.",
        ),
    ] = None
    disk_bandwidth: Annotated[
        float | None,
        of_tokens(
            metavar="GB/S",
            help="In place of --disk: what one device's share of the disks reads and writes.",
        ),
    ] = None

    def on(self, place: Cluster, offload: Offload | None) -> Cluster:
        """The cluster with the disk that the options tell of.

        Raises:
            InputError: Nothing lies on disk, both are given, or the disk was not probed.
        """
        folder, bandwidth = self.disk, self.disk_bandwidth
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


class GuessOptions(OptionGroup, frozen=True, kw_only=True):
    """Tokens that are guessed ahead, by a tree."""

    draft_tree: Annotated[
        int, typer.Option(metavar="N", help="A tree of N tokens is guessed; needs --accuracies.")
    ] = 0
    accuracies: Annotated[
        str,
        typer.Option(
            metavar="FIRST,SECOND,…",
            help="How often guesses for each place are right, by rank: 0.6x0.15x0.08,0.4x0.12.",
        ),
    ] = ""


class ChainOptions(GuessOptions, frozen=True, kw_only=True):
    """Tokens that are guessed ahead by a chain, or by a tree."""

    drafts: Annotated[int, typer.Option(help="Tokens guessed per sequence and step.")] = 0
    acceptance: Annotated[float, typer.Option(help="Chance that a draft is accepted.")] = 0.7
    draft_cost: Annotated[
        float, typer.Option(help="Time of guessing one token for all, over that of a step.")
    ] = 0.05


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
    from ridgeline.measure.network.source import TAKES_INPUTS, is_module, read_network
    from ridgeline.plan.vision.question import vision_name

    if is_module(model):
        return read_network(model, image_size_of(image), inputs)
    if inputs is not None:
        raise InputError(f"--inputs {inputs}: {TAKES_INPUTS}")
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
