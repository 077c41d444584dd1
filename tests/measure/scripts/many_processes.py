"""Trains with loader workers, overwrites a checkpoint, and has a neighbour that detached itself."""

import signal
import subprocess
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

detached = "import time\nwhile True: time.sleep(1)"
subprocess.Popen([sys.executable, "-c", detached], start_new_session=True)


def interrupted(*_):
    with open("interrupted.txt", "w") as file:
        file.write("cleaning up")
    raise KeyboardInterrupt


signal.signal(signal.SIGINT, interrupted)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 16))
while True:
    for (batch,) in DataLoader(data, batch_size=8, num_workers=2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch.save(model.state_dict(), "checkpoint.pt")
