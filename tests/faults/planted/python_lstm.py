"""Video classifier whose recurrent layer is written out, one small operation after another."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class HandWrittenLSTM(nn.Module):
    """The four gates as in the textbook, each with its own matrices, one time step at a time."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.hidden = hidden
        self.input_gate = nn.Linear(inputs + hidden, hidden)
        self.forget_gate = nn.Linear(inputs + hidden, hidden)
        self.output_gate = nn.Linear(inputs + hidden, hidden)
        self.candidate = nn.Linear(inputs + hidden, hidden)

    def forward(self, x):
        batch_size, length, _ = x.shape
        h = x.new_zeros(batch_size, self.hidden)
        c = x.new_zeros(batch_size, self.hidden)
        outputs = []
        for t in range(length):
            joined = torch.cat([x[:, t], h], dim=1)
            i = torch.sigmoid(self.input_gate(joined))
            f = torch.sigmoid(self.forget_gate(joined))
            o = torch.sigmoid(self.output_gate(joined))
            g = torch.tanh(self.candidate(joined))
            c = f * c + i * g
            h = o * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, c)


class VideoClassifier(nn.Module):
    """Convolutions over every frame, an LSTM over the frames, a class for the whole clip."""

    def __init__(self, width, hidden, classes, repaired):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        if repaired:
            self.lstm = nn.LSTM(width, hidden, batch_first=True)
        else:
            self.lstm = HandWrittenLSTM(width, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, clips):
        batch_size, length = clips.shape[:2]
        frames = clips.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = self.frames(frames)
        outputs, _ = self.lstm(features.float().view(batch_size, length, -1))
        return self.head(outputs[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repaired", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    classes, length, batch_size = 6, 128, 4
    model = VideoClassifier(128, 64, classes, args.repaired)
    model.frames.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    labels = torch.randint(classes, (8 * batch_size,))
    clips = torch.randn(8 * batch_size, length, 3, 8, 8) + labels.view(-1, 1, 1, 1, 1)

    for step in range(1, args.steps + 1):
        start = step % 8 * batch_size
        x, y = clips[start : start + batch_size], labels[start : start + batch_size]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
