"""Theory: what a step must cost, from FLOPs, bytes and counts. Arithmetic on its arguments.

One operator and its limit
    roofline.py              the rate that arithmetic intensity allows, and the ridge
    operators.py             every operator of a transformer layer (attention_operators.py,
                             convnet_operators.py), as operator.py has it
    operator_roofline.py     operators under one device's roof
    precision.py             what a lower precision gains

One training run
    training.py              the whole step and its memory, over arrays of layouts; its parts:
                             dimensions, products, attention_kernel, elementwise, logits,
                             optimizer_step, communication, bubble, memory, coefficients …
    pipeline_schedule.py     pipeline schedules block by block, in the order of pipeline_order.py;
                             estimate_timeline.py: that of an estimate
    static_memory.py         bytes per parameter, and what ZeRO leaves of them
    collective_volume.py     what collectives move, and the least time that takes
    scaling.py               strong and weak scaling of data parallelism
    gradient_compression.py  fewer gradient bytes, and when they lose; local_sgd.py: fewer syncs
    learning_rate.py         how the learning rate follows the batch
    checkpoint_interval.py   how often to save, and the goodput that failures leave
    money.py                 device-hours, price, energy, carbon

One served model
    kv_cache.py, decode.py   cache, prefill and decode at the limit
    inference.py             a step of a real engine, prompts and decodes mixed, over arrays;
                             serving_clock.py: one step after another, for simulations
    serving_load.py          latency and throughput under a load
    speculative.py           what drafting gains

    amdahl.py                the speed-up of a whole from that of a part

Nothing here imports torch, reads a file, measures, or knows a device by name: peaks and
bandwidths come in as numbers or as a `Device`. Start reading at `roofline.py`.
"""
