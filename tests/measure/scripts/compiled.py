"""The same model, compiled in the three ways that scripts do it."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
way = sys.argv[1]
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
if way == "module":
    model.compile(backend="aot_eager")
elif way == "wrapped":
    model = torch.compile(model, backend="aot_eager")


def loss_of(x):
    return model(x).pow(2).mean()


if way == "function":
    loss_of = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
for _ in range(steps):
    loss = loss_of(torch.randn(8, 16))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
from torch._dynamo.utils import counters

print("breaks", dict(counters["graph_break"]), "graphs", counters["stats"]["unique_graphs"])
