"""Recipes that train at scale on torch.distributed: what a plan promises, run.

    start.py → worker.py (a rank) → session.py → loop.py, on what build.py put together

    check.py        what cannot run, said before a process starts; nodes.py: several machines
    ranks.py        this process among the others: device, mesh
    data/           text → token shards → a resumable order of batches; batch.py: one micro-batch
    model.py        the Hugging Face model, empty, and what fills it; weights.py: by name
    parallel/       one file per kind of parallelism; passes.py: what they agree on
    loss.py         token losses; distillation.py: a teacher's; evaluate.py: on held-out text
    optimizers/     one file per optimizer; build.py; schedule.py; averaging.py; clipping.py
    precision.py    autocast, loss scaling, fp8; four_bit.py: frozen weights of QLoRA
    adapters.py     LoRA and its kin, through peft
    pruning.py      weights set to zero on the way; lottery.py: and the others sent back
    rounding.py     weights rounded in the forward pass, as they will be saved
    activations.py  recompute and offload; blocks.py: the layers one by one
    compression/    what travels in place of gradients; local_sgd.py: nothing, for a while
    checkpoint/     saved beside the steps, whole or not at all, loaded in any layout
    survive/        restarts, preemption, hangs, spikes; where the wall time went
    watch/          phases per rank, stragglers, journal, profiler windows
    export.py       the trained model as transformers loads it

What may not enter: collectives and sharding of our own (torch.distributed has them), the
search for layouts, another act room. Imports torch; nothing here is imported before a run begins.
"""
