"""Trains in a child process that is forked."""

import multiprocessing

import torch
from torch import nn


def train():
    torch.set_num_threads(1)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(150):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    nn.Linear(16, 16)(torch.randn(8, 16))
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
