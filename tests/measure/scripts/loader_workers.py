"""A DataLoader with two worker processes, several epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 16), torch.randn(256, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
