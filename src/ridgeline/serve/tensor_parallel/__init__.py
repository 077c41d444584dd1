"""One model over several processes, each of which keeps a share of every layer.

`group.py` is what ranks say to each other while they compute (torch.distributed: gloo on CPUs, NCCL
on GPUs), `plan.py` says which tensor is cut along which dimension, `reading.py` reads a rank's
share out of a checkpoint, and `layers.py` holds the modules that add up or put together what the
shares gave. Start reading at `plan.py`.

Ranks compute the same step at the same time. Who decides what that step is, and starts and watches
the ranks, stands in `engine/`; nothing here knows requests.
"""
