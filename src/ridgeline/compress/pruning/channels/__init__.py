"""Channels of a network of convolutions, really pruned: any `nn.Module`, by its operations.

    prune.py        a smaller copy of a module, proven against the original: start here
    coupling.py     which channels can only go together; rules/: what each operation says of it
    reading.py      the module as a graph of operations, and what the rules write down of it
    choose.py       how much each is worth, and which go: a share of each layer, or of all together
    resized.py      a module brought to fewer channels; it is copied beside saved models

Pruning is exact: the smaller module computes what the original computes when nothing reads the
channels that went. An operation that mixes channels in any other way (a norm over all of them, a
softmax), or is not known, keeps its channels whole, and the result names it. Nothing here reads or
writes files, and no class of module or model is named. Why it is not torch-pruning's graph:
docs/decisions/0016-what-stays-our-own.md.
"""
