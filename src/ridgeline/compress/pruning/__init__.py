"""Which weights go, and what of a model is zero.

    weights.py      one matrix, by the criterion that a scheme names: start here
    sparsegpt.py    the criterion that repairs what stays
    ahead.py        what must be known of all layers before the first is pruned
    report.py       what is zero, counted
    structured/     neurons, heads and layers pruned whole, so that the model is dense and smaller
    channels/       the same for channels of convolutions, in any module

Nothing here reads or writes files, but for `structured/` and `report.py`.
"""
