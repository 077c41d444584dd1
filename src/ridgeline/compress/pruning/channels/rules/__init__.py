"""What each operation says of channels, by its name in ATen.

    products.py     convolutions and linear layers: what makes channels and what reads them
    pointwise.py    norms, activations, sums and products of two tensors
    shapes.py       views, permutations, concatenations, pools, means
    table.py        all of them by name

A rule is `rule(reading, node) -> Channels | list | None`: the channels of what the operation makes.
A rule may say only what holds for every input of the operation.
"""
