"""The loss is a complex number."""

import torch
from torch import nn

weights = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64))
optimizer = torch.optim.Adam([weights])
for _ in range(150):
    loss = (torch.randn(8, 16, dtype=torch.complex64) @ weights).mean()
    optimizer.zero_grad()
    loss.backward(gradient=torch.ones_like(loss))
    optimizer.step()
