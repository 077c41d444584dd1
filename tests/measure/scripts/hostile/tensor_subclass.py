"""A tensor subclass that refuses every function but a few."""

import torch
from torch import nn


class Guarded(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("float", "reshape", "clone", "norm"):
            raise RuntimeError(f"{function.__name__} is not for the likes of you")
        return super().__torch_function__(function, types, args, kwargs or {})


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(150):
    loss = model(torch.randn(8, 16)).pow(2).mean().as_subclass(Guarded)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
