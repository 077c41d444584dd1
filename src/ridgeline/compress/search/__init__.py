"""Which scheme for which layer, so that the model becomes as small or fast as a loss allows.

    units.py     layers that must have one scheme, and the schemes that fit them
    budget.py    the combinations worth measuring: one path from the model as given to the smallest
    combined.py  a combination put together from uniformly compressed models, to be measured
    journal.py   what was measured already, on disk
    search.py    sensitivities, path, measurements, the model that is saved

Sensitivities of single layers only say where to look; what is said of a combination was measured.
"""
