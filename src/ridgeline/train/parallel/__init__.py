"""One file per kind of parallelism, each a change to an empty model (on the meta device).

    tensor.py          matrices split over ranks (tp), sequences between them (sp)
    sharding.py        parameters, gradients and optimizer state over ranks (ZeRO 1, 2, 3; DDP)
    pipeline.py        the passes of a pipeline (pp), in the order of its schedule
    stages.py          a model's layers cut into its stages, tried on a tiny one: where, balance.py
    context.py         one sequence over ranks (cp), with ring_attention.py
    experts.py         experts over ranks (ep)
    plain.py           the passes of every layout without a pipeline

All collectives are torch's: DTensor, FSDP2, DDP, torch.distributed.pipelining.
"""
