"""Copies, pickles and scripts its model between steps: nothing of ours may stick to it."""

import copy
import io
import pickle
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    ema = copy.deepcopy(model)
    text = pickle.dumps(model)
    assert b"ridgeline" not in text
    torch.save(model, io.BytesIO())
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert not any(place.endswith("bootstrap") for place in sys.path)
torch.jit.script(model)
print("clean")
