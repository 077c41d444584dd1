"""Train the example's network on scenes of its own and write `driving.safetensors`.

python examples/realtime/train.py
Ten minutes on two cores. One encoder learns all tasks at once; what is shipped are the encoder and
the heads, so that each task's model can begin with the same encoder.
"""

import argparse
import pathlib
import time

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from driving.birds_eye import (
    CELL,
    CELLS_X,
    CELLS_Y,
    DEPTH_STEP,
    FIRST_X,
    FIRST_Y,
    NEAREST,
    BirdsEyeView,
    GatheredBirdsEyeView,
    cell_centres,
)
from driving.network import DEPTHS, DepthHead, Encoder, ObjectHead, RoadHead
from driving.render import Renderer, depth_of_features
from driving.sight import preprocess
from driving.world import PERIOD, make_scene

SEEN = 30
"""Raw pixels of a vehicle without which nobody is asked to see it."""


def make_examples(count, seed):
    """Frames with what is true of them: images, depth bins, object maps, road."""
    renderer, generator = Renderer(), np.random.default_rng(seed)
    examples = []
    for index in range(count):
        if index % 100 == 0:
            print(f"drawing frame {index} of {count}", flush=True)
        scene = make_scene(seed * 100_000 + index // 3)
        seconds = generator.uniform(0, PERIOD)
        images, depth, seen = renderer.draw(scene, seconds)
        bins = np.floor((depth_of_features(depth) - NEAREST) / DEPTH_STEP)
        bins = np.where((bins >= 0) & (bins < DEPTHS), bins, -100).astype(np.int64)
        maps = object_maps(scene.boxes(seconds)[seen >= SEEN])
        road = scene.on_road(seconds, cell_centres()).astype(np.float32)
        examples.append((preprocess(images).half(), *map(torch.from_numpy, (bins, maps, road))))
    return examples


def object_maps(boxes):
    """What the object head should say of boxes: heat, offsets, sizes and where these count,
    (6, 64, 32). Heat falls off around a centre as a bell of 0.8 m."""
    maps = np.zeros((6, CELLS_X, CELLS_Y), dtype=np.float32)
    centres = cell_centres()
    for x, y, _, length, width in boxes[:, :5]:
        row, column = int((x - FIRST_X) // CELL), int((y - FIRST_Y) // CELL)
        if not (0 <= row < CELLS_X and 0 <= column < CELLS_Y):
            continue
        away = ((centres - centres[row, column]) ** 2).sum(axis=-1)
        maps[0] = np.maximum(maps[0], np.exp(-away / (2 * 0.8**2)))
        offset = (np.array([x, y]) - centres[row, column]) / CELL
        maps[1:, row, column] = (*offset, np.log(length), np.log(width), 1.0)
    return maps


def heat_loss(logits, target):
    """Focal loss of CenterNet (arXiv:1904.07850, equation 1), per centre."""
    probability = torch.sigmoid(logits)
    centre = target > 0.999
    right = functional.logsigmoid(logits) * (1 - probability) ** 2
    wrong = functional.logsigmoid(-logits) * probability**2 * (1 - target) ** 4
    return -torch.where(centre, right, wrong).sum() / centre.sum().clamp(min=1)


class Network(nn.Module):
    """All that is learnt."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.view = BirdsEyeView(DepthHead())
        self.object_head = ObjectHead()
        self.road_head = RoadHead()
        self.gathered = [GatheredBirdsEyeView(self.view)]  # in a list: not registered twice

    def loss(self, images, bins, maps, road):
        features = self.encoder(images.flatten(0, 1).float())
        objects, ground, depth = self.gathered[0](features)
        said = self.object_head(objects)
        heat = heat_loss(said[:, 0], maps[:, 0])
        counts = maps[:, 5:]
        place = ((said[:, 1:] - maps[:, 1:5]).abs() * counts).sum() / counts.sum().clamp(min=1)
        far = functional.cross_entropy(depth, bins.flatten(0, 1))
        drivable = functional.binary_cross_entropy_with_logits(self.road_head(ground)[:, 0], road)
        return heat + place + 0.5 * far + drivable, (heat, place, far, drivable)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--out", default=pathlib.Path(__file__).parent / "driving.safetensors")
    args = parser.parse_args()

    torch.manual_seed(0)
    network = Network()
    begun = time.monotonic()
    examples = make_examples(args.frames, seed=1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps)
    for step in range(args.steps):
        picked = torch.randint(len(examples), (args.batch_size,)).tolist()
        batch = [torch.stack(parts) for parts in zip(*(examples[i] for i in picked))]
        loss, parts = network.loss(*batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == args.steps - 1:
            shown = "  ".join(
                f"{name} {value:.3f}"
                for name, value in zip(("heat", "place", "depth", "road"), parts)
            )
            print(f"step {step:4d}  {shown}  {time.monotonic() - begun:.0f} s", flush=True)
    weights = {name: value.half().contiguous() for name, value in network.state_dict().items()}
    save_file(weights, args.out)
    print(f"{sum(value.numel() for value in weights.values()):,} numbers in {args.out}")


if __name__ == "__main__":
    main()
