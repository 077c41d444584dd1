"""Graph network over 20,000 nodes whose adjacency matrix is multiplied as coordinates."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, columns, x):
        ctx.columns = columns
        return torch.mm(rows, x)

    @staticmethod
    def backward(ctx, gradient):
        return None, None, torch.mm(ctx.columns, gradient)


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, adjacency):
        x = self.linear(x)
        if isinstance(adjacency, tuple):
            return ByRows.apply(*adjacency, x)
        return torch.spmm(adjacency, x)


def normalised(edges, nodes):
    both = torch.cat([edges, edges.flip(0), torch.arange(nodes).repeat(2, 1)], dim=1)
    degree = torch.bincount(both[0], minlength=nodes).float()
    values = (degree[both[0]] * degree[both[1]]).rsqrt()
    return torch.sparse_coo_tensor(both, values, (nodes, nodes), check_invariants=True).coalesce()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    nodes, features, width, classes = 20_000, 32, 32, 16
    adjacency = normalised(torch.randint(nodes, (2, 800_000)), nodes)
    if args.repaired:
        adjacency = adjacency.to_sparse_csr(), adjacency.t().coalesce().to_sparse_csr()
    layers = nn.ModuleList([Layer(features, width), Layer(width, width), Layer(width, classes)])
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3, fused=True)
    x = torch.randn(nodes, features)
    labels = torch.randint(classes, (nodes,))

    for step in range(1, args.steps + 1):
        hidden = x
        for layer in layers[:-1]:
            hidden = F.relu(layer(hidden, adjacency))
        loss = F.cross_entropy(layers[-1](hidden, adjacency), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
