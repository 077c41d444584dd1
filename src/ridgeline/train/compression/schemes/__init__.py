"""What may travel in place of fp32 gradients: one file for each, and the list is this folder.

Each has `make(settings, counted, sizes)`, which returns a `Scheme`. Its name in recipes is the
file's.
"""
