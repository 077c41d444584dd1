"""What every engine's script shares: it is loaded once and then measured whenever it is asked.

A line on stdin names a measurement, a line of JSON on stdout answers it:

    decode    seconds between the tokens of one greedy answer
    mixed     seconds for all requests of the workload at once, every answer to its full length

Needs nothing beyond Python, since it runs in the environment of each peer. What libraries print
goes to stderr.
"""

import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path

DECODE_PROMPT, DECODE_TOKENS = 64, 65


def serve(build):
    """`build(folder, weights, threads)` gives an object with `decode` and `mixed`."""
    folder, weights, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.environ["OMP_NUM_THREADS"] = str(threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**content):
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    workload = json.loads((folder / "workload.json").read_text())
    requests = [(prompt, count) for prompt, count in workload]
    prompt = (requests[0][0] * DECODE_PROMPT)[:DECODE_PROMPT]
    engine = build(folder, weights, threads)
    engine.decode(prompt, 8)  # warms up
    engine.mixed([(one, min(8, count)) for one, count in requests])
    say(ready=True, bytes_per_step=getattr(engine, "bytes_per_step", None))
    for line in sys.stdin:
        if line.strip() == "decode":
            times = engine.decode(prompt, DECODE_TOKENS)
            steps = [after - before for before, after in itertools.pairwise(times)]
            assert len(steps) == DECODE_TOKENS - 1, len(steps)
            say(steps=steps)
        else:
            began = time.perf_counter()
            counts = engine.mixed(requests)
            seconds = time.perf_counter() - began
            assert counts == [count for _, count in requests], counts
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            say(seconds=seconds, peak_bytes=peak)
