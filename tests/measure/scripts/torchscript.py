"""Inference with a TorchScript program: traced, scripted, or saved and loaded again."""

import io
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).eval()
kept = io.BytesIO()


def doubled(factor: float) -> torch.jit.ScriptFunction:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scale(x, 2.0)

    @torch.jit.script
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:  # found among the locals of its caller
        return x * by

    return torch.jit.script(Scale())


match sys.argv[1]:
    case "trace":
        model = torch.jit.trace(model, torch.randn(4, 64))
    case "script":
        model = nn.Sequential(model, doubled(2.0))
    case "load":
        torch.jit.save(torch.jit.script(model), kept)
        kept.seek(0)
        model = torch.jit.load(kept)

with torch.no_grad():
    for _ in range(3000):
        model(torch.randn(4, 64)).argmax(-1).tolist()
