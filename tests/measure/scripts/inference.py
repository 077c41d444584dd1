"""No optimizer, no backward: a step is one call.

With `threads` each is in a thread of its own; with `pool` the first thread lives on, idle, and
others answer in its place.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).eval()


def answer() -> None:
    with torch.no_grad():
        model(torch.randn(4, 64)).argmax(-1).tolist()


first, others = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
for number in range(3000):
    if sys.argv[1:] == ["threads"]:
        thread = Thread(target=answer)
        thread.start()
        thread.join()
    elif sys.argv[1:] == ["pool"]:
        (first if number < 8 else others).submit(answer).result()
    else:
        answer()
