"""What flows through a block, found by running it and not by the names of its classes.

    products.py    every product with a weight, whatever kind of module computes it
    capture.py     gathers what meets each weight: `Seen` (seen.py); hessian.py inverts its products
    sharing.py     which weights share an input, and what before them can take a scale over
    cache.py       ranges of keys and values; outliers.py: channels far larger than the others

What may not enter: changing a weight.
"""
