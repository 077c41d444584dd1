"""Waits before its first step, then steps so slowly that there is time for few of them."""

import sys
import time

import torch

before, each = (float(word) for word in sys.argv[1:])
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    time.sleep(before)


evaluate()
while True:
    loss = model(torch.randn(4, 8)).pow(2).mean()
    time.sleep(each)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
