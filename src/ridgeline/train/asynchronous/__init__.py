"""Training without a barrier: workers that compute gradients, and one server that holds weights.

    rules.py    what the server does with a gradient: pure, no process, no clock
    workers.py  one process for each worker, and the server among them

`train_asynchronously` is the way in. The synchronous rule is here too, so that the same problem
runs with and without the barrier and nothing but the rule differs. What may not enter: the recipe
and its loop, whose ranks agree by collectives.
"""
