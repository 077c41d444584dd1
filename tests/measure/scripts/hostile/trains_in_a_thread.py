"""Tries the model in the main thread, then trains in another."""

import threading

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 16))


def train():
    for _ in range(150):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


thread = threading.Thread(target=train)
thread.start()
thread.join()
