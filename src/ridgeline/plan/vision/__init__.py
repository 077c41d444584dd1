"""Planning for networks that look at images: the fitted model and its error on published runs.

    coefficients.py   the coefficients that the package ships, and the class of a piece of software
    published.py      reading a table of published runs
    fit.py            coefficients from published runs, the runs of one device or family left out
    validate.py       the error on a table

What may not enter: torch, and formulas, which stand in `cost/vision/`.
"""
