from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import threading
import torch
from ridgeline.train.ranks import compute_alone

torch.set_num_threads(2)
compute_alone()
seen = []

def work():
    torch.ones(4_000_000).add_(1)
    seen.append(torch.get_num_threads())

beside = threading.Thread(target=work)
beside.start()
beside.join()
print(torch.get_num_threads(), seen)
"""


@pytest.mark.slow
def test_threads_beside_training_compute_alone_and_the_training_thread_keeps_its_number():
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split("\n")[0] == "2 [1]"
