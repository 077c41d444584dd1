"""A training loop whose step takes about 10 ms on two CPU cores; prints its own step times.

`--traceml` adds the two lines that TraceML asks of a plain loop.
"""

import contextlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 400
WARMUP = 100


def main() -> None:
    step_context = contextlib.nullcontext
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(12))
    )
    if "--traceml" in sys.argv:
        import traceml_ai

        traceml_ai.init(mode="auto")
        step_context = lambda: traceml_ai.trace_step(model)  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = TensorDataset(torch.randn(256 * (STEPS + WARMUP), 256))
    seconds = []
    before = time.perf_counter()
    for (x,) in DataLoader(data, batch_size=256):
        with step_context():
            optimizer.zero_grad()
            loss = (model(x) - x).pow(2).mean()
            loss.backward()
            optimizer.step()
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
    timed = seconds[WARMUP:]
    print(f"STEP {statistics.median(timed):.9f} {statistics.fmean(timed):.9f}")


if __name__ == "__main__":
    main()
