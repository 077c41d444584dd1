"""What flows through a block, found by running it and not by the names of its classes.

    capture.py     every matmul with a weight, whatever kind of module computes it, and what is
                   gathered of its activations; ranges of keys and values
    halfway.py     a forward pass that goes on where it stopped
    statistics.py  what is gathered, for the methods; the Hessian and its inverse
    sharing.py     which weights share an input, and what before them can take a scale over
    outliers.py    channels far larger than the others

What may not enter: changing a weight.
"""
