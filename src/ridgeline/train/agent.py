"""The process of torchrun, `python -m ridgeline.train.agent PARENT WORDS…`: it ends with PARENT.

Ranks end with it (`worker.py`), so that a killed command leaves none that train on, hold devices,
and write checkpoints below whoever goes on with the run.
"""

from __future__ import annotations

import os
import sys

from ridgeline.measure.parent_death import die_with_parent

AGENT = "RIDGELINE_TRAIN_AGENT"
"""The variable that tells ranks the process id of their agent."""


def main() -> None:
    """Be torchrun for the words that follow the parent's process id."""
    die_with_parent(int(sys.argv[1]))
    os.environ[AGENT] = str(os.getpid())
    from torch.distributed.run import main as torchrun

    torchrun(sys.argv[2:])


if __name__ == "__main__":
    main()
