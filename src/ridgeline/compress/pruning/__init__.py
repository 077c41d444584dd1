"""Which weights go, one file per criterion.

    weights.py      one matrix, by the criterion that a scheme names: start here
    magnitude.py    the smallest; wanda.py: times their inputs; sparsegpt.py: with the rest repaired
    taylor.py       by what the loss would lose
    global_share.py one share over all layers together, as a share for each
    ahead.py        what must be known of all layers before the first is pruned
    packed.py       2:4 as the hardware reads it; report.py: what is zero, counted
    structured/     neurons, heads and layers taken out, so that the model is dense and smaller
    channels/       the same for channels of convolutions, in any module

A criterion is `mask(weight, pruning, seen) -> Tensor` (True stays) or, where what stays is changed
too (SparseGPT), `prune`. Nothing here reads or writes files.
"""
