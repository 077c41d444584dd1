"""The theory of what a step must cost, from FLOPs, bytes and counts: arithmetic on its arguments.

One operator and its limit
    roofline.py              the rate that arithmetic intensity allows; operators under one roof
    operators.py             every operator of a transformer layer (attention_operators.py,
                             of images: vision_operators.py), as operator.py has it

One training run
    training/                the whole step and its memory, over arrays of layouts (arrays.py)
    pipeline_schedule.py     pipeline schedules block by block, in the order of pipeline_order.py
    static_memory.py         bytes per parameter, and what ZeRO leaves of them
    collective_volume.py     what collectives move, and the least time that takes
    scaling.py               strong and weak scaling of data parallelism
    gradient_compression.py  fewer gradient bytes, or fewer syncs, and when they lose
    learning_rate.py         how the learning rate follows the batch
    checkpoint_interval.py   how often to save, and the goodput that failures leave
    money.py                 device-hours, price, energy, carbon
    utilisation.py           FLOPs of a run, MFU, and how long it takes at one

One served model
    serving/                 a step of a real engine, latency and throughput under a load; the KV
                             cache, decoding at the limit, what drafting gains

    occupancy.py             warps of a kernel that a multiprocessor holds, and what limits them
    flash_attention.py       attention tile by tile, beside the form that writes its scores
    amdahl.py                the speed-up of a whole from that of a part
    deadline.py              what a frame's deadline leaves, and the speed-up that it needs

Nothing here imports torch, reads a file, measures, or knows a device by name: peaks and
bandwidths come in as numbers or as a `Device`. `ridgeline calc` answers with these formulas. Start
reading at `roofline.py`.
"""
