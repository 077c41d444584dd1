"""A model written for another runtime, checked on real inputs in a fresh process, and measured.

    job.py           one job from model to report; DIR is whole or not there: start here
    model_source.py  from what a user names to a module with its weights
    check_inputs.py  real inputs at two batches and two image sizes
    orders.py        what a worker is asked, and what it answers
    process.py       a worker as the parent sees it; it dies with the parent
    worker.py        the worker: the eager reference, a conversion, or one format that is called
    comparing.py     answers beside those of the eager model; verdict.py says what is too far
    stages.py        the first layer that differs
    fusion.py        operators before, kernels after
    cached.py        conversions of the same graph, weights, device and versions

What may not enter: how a runtime converts and loads (`runtimes/`), training, serving. The parent
never imports torch: every model lives in a process of its own.
"""
