"""Networks that look at images, each as the list of its operators for one image.

    network.py      `VisionNetwork` and `VisionOperator`: start here

What may not enter: torch, and any time or rate; how long an operator takes is for `cost/vision/`.
"""
