"""The default device is meta, the default dtype float64."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
nn.Linear(4, 4)(torch.randn(2, 4))
model = nn.Linear(16, 16, device="cpu")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16, device="cpu")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(gradient=torch.ones((), device="cpu"))
    optimizer.step()
