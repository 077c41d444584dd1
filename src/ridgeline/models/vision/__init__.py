"""Networks that look at images, each as the list of its operators for one image.

    network.py      `VisionNetwork` and `VisionOperator`: start here
    presets.py      well-known networks by name, from `presets.csv.gz` (rows.py reads its rows)
    sizes.py        a network at another image size

What may not enter: torch, and any time or rate; how long an operator takes is for `cost/vision/`.
"""
