"""Optimizers on local shards: torch's where it has them, one file for each that it has not.

build.py            recipe → one optimizer; a view of several modules for saving
shards.py           the frame: rules see local tensors, state is placed as the parameters
adamw.py            torch's fused kernel; 8-bit moments and rounding by chance from torchao
elementwise.py      Lion, SGD
adafactor.py        statistics of whole matrices, summed over the ranks
muon.py             orthogonal updates, of matrices that are lent to one rank each
"""
