"""A critic learns at each step, its generator at every fifth."""

import torch
from torch import nn

generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
for_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
for_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
for number in range(10_000):
    for_critic.zero_grad()
    critic(generator(torch.ones(8, 4))).mean().backward()
    for_critic.step()
    if number % 5 == 4:
        for_generator.zero_grad()
        (-critic(generator(torch.ones(8, 4))).mean()).backward()
        for_generator.step()
