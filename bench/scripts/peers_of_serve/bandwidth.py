"""How fast this machine reads its memory right now; answers like a peer, with bytes per second."""

import json
import sys
import time

import torch

BYTES = 1 << 29
READS = 5

threads = int(sys.argv[3])
torch.set_num_threads(threads)
buffer = torch.ones(BYTES // 4)
print(json.dumps({"ready": True}), flush=True)
for _ in sys.stdin:
    times = []
    for _ in range(READS):
        began = time.perf_counter()
        buffer.sum().item()
        times.append(time.perf_counter() - began)
    print(json.dumps({"bytes_per_second": BYTES / min(times)}), flush=True)
