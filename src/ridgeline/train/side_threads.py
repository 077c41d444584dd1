"""Threads beside the training loop compute alone.

Every thread that runs a parallel operator of torch gets an OpenMP team of its own. With more team
threads than cores, libgomp's threads no longer spin at barriers but sleep at once (`gomp_throttled_
spin_count`, libgomp/config/linux/wait.h), in *all* teams and for as long as the second team lives:
small operators of the training loop then take up to three times as long. The thread that copies
checkpoints would do that from the first save on.
"""

from __future__ import annotations

import threading

import torch


def compute_alone() -> None:
    """Threads begun from here on get one OpenMP thread each; the calling one keeps its own.

    torch keeps the number per thread, and takes for a new thread what was set last in any
    (`at::init_num_threads`).
    """
    torch.get_num_threads()  # Fixes the calling thread's own number, which is lazily read.
    setter = threading.Thread(target=torch.set_num_threads, args=(1,))
    setter.start()
    setter.join()
