"""Overwrites a checkpoint while training, and has handlers of every kind."""

import atexit
import os
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(print, "exit handler ran")
try:
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).pow(2).mean().backward()
        optimizer.step()
        torch.save(model.state_dict(), "best.pt")
        torch.save(model.state_dict(), "tmp.pt")
        os.replace("tmp.pt", "last.pt")
except BaseException:
    print("except ran")
    raise
finally:
    torch.save({"finished": step}, "final.pt")
    print("finally ran")
