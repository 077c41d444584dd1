"""Embeddings with sparse gradients, and a loss that is a sparse tensor."""

import torch
from torch import nn

model = nn.Embedding(100, 16, sparse=True)
optimizer = torch.optim.SparseAdam(model.parameters())
for _ in range(150):
    loss = model(torch.randint(0, 100, (8,))).pow(2).mean()
    optimizer.zero_grad()
    loss.to_sparse().backward(gradient=torch.ones(()).to_sparse())
    optimizer.step()
