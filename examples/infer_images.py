"""Classify a stream of images with a vision model from transformers and report its latency.

python infer_images.py --model resnet --steps 100
"""

import argparse
import statistics
import time

import numpy as np
import torch
import transformers
from sklearn.datasets import load_sample_images


def build(name, num_classes):
    """The architecture at its usual size; its weights are random."""
    if name == "resnet":
        config = transformers.ResNetConfig(num_labels=num_classes)
        return transformers.ResNetForImageClassification(config)
    if name == "mobilenet":
        config = transformers.MobileNetV2Config(num_labels=num_classes)
        return transformers.MobileNetV2ForImageClassification(config)
    config = transformers.ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=num_classes
    )
    return transformers.ViTForImageClassification(config)


def batches(batch_size, size, seed):
    """Crops of two photographs, without end."""
    generator = np.random.default_rng(seed)
    photographs = load_sample_images().images
    while True:
        crops = []
        for _ in range(batch_size):
            photograph = photographs[generator.integers(len(photographs))]
            height, width, _ = photograph.shape
            top = generator.integers(height - size + 1)
            left = generator.integers(width - size + 1)
            crops.append(photograph[top : top + size, left : left + size])
        pixels = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous()
        yield (pixels.float() / 255 - 0.45) / 0.225


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["resnet", "mobilenet", "vit"], default="resnet")
    parser.add_argument("--steps", type=int, default=100, help="batches to classify")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--image", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = build(args.model, args.classes).eval()

    latencies = []
    stream = batches(args.batch_size, args.image, args.seed)
    for step in range(1, args.steps + 1):
        images = next(stream)
        start = time.perf_counter()
        labels = model(images).logits.argmax(dim=1)
        latencies.append(time.perf_counter() - start)
        if step % 20 == 0:
            recent = statistics.median(latencies[-20:])
            print(
                f"batch {step:4d}  median latency {recent * 1000:.1f} ms  labels {labels[:4].tolist()}"
            )

    ordered = sorted(latencies)
    p50 = ordered[len(ordered) // 2]
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    print(f"p50 {p50 * 1000:.1f} ms  p99 {p99 * 1000:.1f} ms  {args.batch_size / p50:.1f} images/s")


if __name__ == "__main__":
    main()
