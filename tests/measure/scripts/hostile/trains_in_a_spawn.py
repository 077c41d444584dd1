"""Trains in a child process that is spawned."""

import multiprocessing

import torch
from torch import nn


def train():
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(150):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train)
    child.start()
    child.join()
