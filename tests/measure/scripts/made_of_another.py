"""A large model is called once, for what a small one is to learn; then the small one answers."""

import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 8)).eval()
student = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).eval()

with torch.no_grad():
    teacher(torch.randn(4, 64))
    for _ in range(3_000_000):
        student(torch.randn(4, 64)).argmax(-1).tolist()
