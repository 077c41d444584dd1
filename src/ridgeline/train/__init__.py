"""Recipes that train at scale on torch.distributed, laid out as a plan says.

    start.py → worker.py (a rank) → session.py → loop.py, on what build.py put together;
    ending.py says how a run ended, nodes.py several machines and the one that leads

    part.py         what a technique of training is: one file, asked at fixed points of a step;
                    build.py lists them all
    folder.py       names of what lies in a run's folder
    check.py        what cannot run, said before a process starts; nodes.py: several machines
    ranks.py        this process among the others: device, mesh
    data/           text → token shards → a resumable order of batches; batch.py: one micro-batch
    model.py        the Hugging Face model, empty, and what fills it; weights.py: by name
    parallel/       one file per kind of parallelism; `Passes` of build.py: what they agree on
    loss.py         token losses
    optimizers/     one file per optimizer; build.py
    checkpoint/     saved beside the steps, whole or not at all, loaded in any layout
    survive/        restarts, preemption, hangs, spikes; where the wall time went
    watch/          phases per rank, stragglers, the log, profiler windows
    export.py       the trained model as transformers loads it

The techniques:

    schedule.py     the learning rate
    precision.py    autocast, loss scaling, fp8; four_bit.py: frozen weights of QLoRA
    activations.py  recompute and offload; blocks.py: the layers one by one
    averaging.py    a moving average of the weights
    distillation.py a teacher's loss
    adapters.py     LoRA and its kin, through peft
    pruning.py      weights set to zero on the way; lottery.py: and the others sent back
    rounding.py     weights quantised in the forward pass, as they will be saved
    compression/    what travels in place of gradients; local_sgd.py: nothing, for a while
    asynchronous/   a parameter server and workers without a barrier, beside all of the above

What may not enter: collectives and sharding of our own (torch.distributed has them), the
search for layouts, another act room. Imports torch; nothing here is imported before a run begins.
"""
