"""One model in a process of its own: loads it, then calls it as often as the parent asks.

    python -m ridgeline.compress.images.call_worker FILE RUNTIME THREADS IMAGES.npz

A line in, `calls seconds`, is answered by a line of JSON: the seconds of each call, no more calls
than asked for and none begun after so many seconds. The first line out is the first call's seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def main() -> None:
    """Serve one parent on standard input and output, until the input ends."""
    file, runtime, threads, images = sys.argv[1:]
    call = _session(Path(file), runtime, int(threads), Path(images))
    _say([_seconds(call)])
    for line in sys.stdin:
        calls, seconds = line.split()
        taken: list[float] = []
        end = time.perf_counter() + float(seconds)
        while len(taken) < int(calls) and (not taken or time.perf_counter() < end):
            taken.append(_seconds(call))
        _say(taken)


def _session(file: Path, runtime: str, threads: int, images: Path) -> Callable[[], object]:
    with np.load(images) as archive:
        arrays = [archive[name] for name in archive.files]
    if runtime == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        names = [one.name for one in session.get_inputs()]
        given = dict(zip(names, arrays, strict=True))
        return lambda: session.run(None, given)
    import torch

    from ridgeline.runtimes.capture.quiet import silence

    torch.set_num_threads(threads)
    with silence():
        module = torch.export.load(file).module()
    tensors = [torch.from_numpy(one) for one in arrays]

    def call() -> object:
        with torch.inference_mode():
            return module(*tensors)

    return call


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _say(seconds: list[float]) -> None:
    sys.stdout.write(json.dumps(seconds) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
