"""Image classifiers compressed: channels taken out, each row judged on images and timed.

    judged.py       schemes in order, each row measured, saved if it held: start here
    material.py     the model and the images, checked
    quality.py      top-1 accuracy and distance from the model as given
    speed.py        models timed in turns
    saved.py        directories that transformers loads, and loading them

For directories of `AutoModelForImageClassification`; which channels go is decided in
`pruning/channels/`. Language models have the rest of `compress/`.
"""
