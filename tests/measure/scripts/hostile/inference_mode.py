"""Inference under inference_mode, with tensors that allow nothing else."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
with torch.inference_mode():
    for _ in range(300):
        model(torch.randn(8, 16))
