"""Five discriminator steps for one generator step."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(8, 16), nn.Linear(16, 1)
g_optimizer = torch.optim.Adam(generator.parameters())
d_optimizer = torch.optim.Adam(critic.parameters())
for _ in range(200):
    for _ in range(5):
        loss = (
            critic(generator(torch.randn(4, 8)).detach()).mean() - critic(torch.randn(4, 16)).mean()
        )
        d_optimizer.zero_grad()
        loss.backward()
        d_optimizer.step()
    loss = -critic(generator(torch.randn(4, 8))).mean()
    g_optimizer.zero_grad()
    loss.backward()
    g_optimizer.step()
