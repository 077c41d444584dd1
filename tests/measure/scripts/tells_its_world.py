"""Writes what a script can see of how it was started into `$XDG_CACHE_HOME/$WORLD`; then trains."""

import json
import os
import random
import signal
import sys

import numpy as np
import torch
from torch import nn

read = sys.stdin.read()
random.seed(1)
np.random.seed(2)
torch.manual_seed(3)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    if step == 1:
        world = {
            "argv": sys.argv,
            "path": sys.path,
            "main": sorted(vars(sys.modules["__main__"])),
            "file": __file__,
            "cwd": os.getcwd(),
            "umask": os.umask(0o22),
            "ids": [os.getuid(), os.getgid(), sorted(os.getgroups())],
            "stdin": read,
            "signals": {
                one.name: repr(signal.getsignal(one))
                for one in signal.valid_signals()
                if isinstance(one, signal.Signals)
            },
            "leads its group": os.getpgrp() == os.getpid(),
            "random": str(random.getstate())[:200],
            "numpy": np.random.get_state()[1][:8].tolist(),
            "torch": torch.get_rng_state()[:64].tolist(),
            "weights": model.weight.sum().item(),
            "environment": {
                name: value
                for name, value in os.environ.items()
                if not name.startswith("RIDGELINE_")
            },
        }
        with open(os.path.join(os.environ["XDG_CACHE_HOME"], os.environ["WORLD"]), "w") as file:
            json.dump(world, file)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
