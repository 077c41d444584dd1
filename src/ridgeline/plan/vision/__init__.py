"""Planning for networks that look at images: the fitted model and its error on published runs.

    coefficients.py   the coefficients that the package ships, and the class of a piece of software
    published.py      reading a table of published runs
    fit.py            coefficients from published runs, the runs of one device or family left out
    validate.py       the error on a table
    question.py       what may be asked, and the words in which it is
    timing.py         the time of one device, for what follows
    training.py       one training step: time, memory, input, scaling, the whole run
    offered.py        what software offers a network: layouts, products in 8 bits
    inference.py      one forward pass: latency, what bounds it, what would change it
    search_training.py, search_inference.py   the best of many

What may not enter: torch, and formulas, which stand in `cost/vision/`.
"""
