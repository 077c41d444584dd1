"""Which GPUs are split how among models that do not each need one: MIG, MPS, time-slicing, whole.

    workload.py   what is to be served: memory, load, isolation
    slots.py      the parts that a GPU may be split into, as devices of their own
    capacity.py   how many parts of each kind a workload needs
    assign.py     the kind of part for every workload, and a bound on what any choice costs
    deal.py       who gets which part of which GPU
    manifests.py  the same as objects for Kubernetes
    answer.py     all of it

Start reading at `answer.py`. What may not enter: a cluster, the network, torch.
"""
