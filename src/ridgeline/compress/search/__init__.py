"""Which scheme for which layer, so that the model becomes as small or fast as a loss allows.

    search.py    sensitivities, path, measurements, the model that is saved: start here
    units.py     layers that must have one scheme, the schemes that fit them, and their costs
    budget.py    the combinations worth measuring, from the model as given to the smallest, and the
                 walk along them

Sensitivities of single layers only say where to look; what is said of a combination was measured.
"""
