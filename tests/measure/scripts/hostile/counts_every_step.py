"""A dispatch mode of the script's own around every step, optimizer and all."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    with FlopCounterMode(display=False) as counter:
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert counter.get_total_flops() == 8 * 16 * 32 * 2 * 5
assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
