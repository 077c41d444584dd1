"""Rounding that a network computes with while it is calibrated or trained, and its ranges.

    straight_through.py  tensors rounded with a gradient: straight through, or learned steps (LSQ);
                         parametrisations of weights and modules for activations
    histogram.py         what was seen of a tensor, batch by batch, in a fixed number of bins
    ranges.py            range observers: min-max, moving average, percentile, squared error, entropy
    folding.py           batch normalisation moved into the convolution before it

Used by `compress/vision/` (after training) and `train/` (with it). Number formats themselves stand in
`number_formats/`. What may not enter: graphs, layers' names, files.
"""
