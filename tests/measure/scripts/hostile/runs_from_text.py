"""The loop is text that is executed, without a name or a file."""

LOOP = """
import torch
from torch import nn
model = nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
exec(compile(LOOP, "<cell 3>", "exec"), {"__name__": None})
