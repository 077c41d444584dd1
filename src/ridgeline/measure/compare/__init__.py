"""Records of runs beside each other: two of them, or one commit after the other.

    runs.py        what is read of each kind of record
    comparison.py  the new run against a reference: slower beyond noise?
    history.py     many runs over time, and where they changed

What may not enter: a live process. Start reading at `comparison.py`.
"""
