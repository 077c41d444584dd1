"""No optimizer, no backward: a step is one call; with `threads` each in a thread of its own."""

import sys
from threading import Thread

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).eval()


def answer() -> None:
    with torch.no_grad():
        model(torch.randn(4, 64)).argmax(-1).tolist()


for _ in range(3000):
    if sys.argv[1:] == ["threads"]:
        thread = Thread(target=answer)
        thread.start()
        thread.join()
    else:
        answer()
