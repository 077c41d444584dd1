"""Answers requests; every eighth is sixteen times as long."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).eval()
with torch.no_grad():
    for request in range(4000):
        rows = 512 if request % 8 == 7 else 32
        model(torch.randn(rows, 256)).argmax(-1).tolist()
