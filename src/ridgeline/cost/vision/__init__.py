"""What a network that looks at images costs on one device: its step or its latency, by operators.

    setting.py       how a network runs: task, batch, precision, layout, software
    work.py          what its operators ask of a device, in seconds at the device's peaks
    coefficients.py  how far from those peaks each kind of work runs, under each software
    estimate.py      `estimate`: seconds, terms, 80 % interval; start here

What may not enter: torch, files, and any device, model or source by its name.
"""
