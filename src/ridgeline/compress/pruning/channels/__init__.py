"""Channels of a network of convolutions, really taken out: any `nn.Module`, by its operations.

    take_out.py     a smaller copy of a module, proven against the original: start here
    traced.py       the module as the graph of operations that its forward pass is
    coupling.py     which channels can only go together; rules/: what each operation says of it
    reading.py      what the rules read and write down
    labels.py       the channels of all tensors, joined as the rules find them joined
    worth.py        how much each is worth, from the weights that would go with it
    choose.py       which of them go: a share of each layer, or of all together
    resized.py      a module brought to fewer channels; it is copied beside saved models
    flops.py        what a forward pass computes

What is taken out is exact: the smaller module computes what the original computes when nothing
reads the channels that went. An operation that mixes channels in any other way (a norm over all of
them, a softmax), or is not known, keeps its channels whole, and the answer names it. Nothing here
reads or writes files, and no class of module or model is named.
"""
