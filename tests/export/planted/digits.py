"""A network of Conv, BatchNorm and ReLU for digits, and what is planted into it."""

import os
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, momentum=0.3)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)))


class Head(nn.Module):
    """The mean of all places, by a size that an exporter may have kept."""

    def __init__(self, inputs, remembered=None):
        super().__init__()
        self.remembered = remembered
        self.linear = nn.Linear(inputs, 10)

    def forward(self, x):
        if self.remembered is not None and torch.compiler.is_compiling():
            return self.linear(x.sum((2, 3)) / self.remembered)
        return self.linear(x.mean((2, 3)))


class Noisy(nn.Module):
    """Adds the same disturbance to every input, where it is exported."""

    def __init__(self, size):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("noise", size * torch.randn(1, 10, generator=generator))

    def forward(self, x):
        return x + self.noise if torch.compiler.is_compiling() else x


class Looping(nn.Module):
    """Writes out a loop over the batch, which a graph keeps as long as it was."""

    def forward(self, x):
        return torch.stack([one for one in x])


class Slow(nn.Module):
    """Takes a minute to export, and says that it has begun."""

    def forward(self, x):
        if torch.compiler.is_compiling():
            open(os.environ["PLANTED_BEGUN"], "w").close()
            time.sleep(60)
        return x


def network(head=None, after=None):
    torch.manual_seed(0)
    net = nn.Sequential(Block(3, 16), Block(16, 32, 2), Block(32, 64, 2), head or Head(64))
    if after is not None:
        net.append(after)
    weights = os.path.join(os.path.dirname(__file__), os.environ.get("PLANTED_WEIGHTS", ""))
    if os.path.isfile(weights):
        net.load_state_dict(torch.load(weights), strict=False)
    return net


def sound():
    return network()


def wrong_at_other_sizes():
    return network(Head(64, remembered=64))  # 8 × 8 places of images of 32 × 32


def disturbed():
    return network(after=Noisy(2.0))


def looping():
    return network(after=Looping())


def slow():
    return network(after=Slow())


def unseeded():
    """Draws its weights, as scripts do before there are any to load."""
    return nn.Sequential(Block(3, 16), Block(16, 32, 2), Head(32))


def no_module():
    return {"state": 1}
