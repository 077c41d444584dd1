"""Image classifiers made smaller: channels are pruned, each row is judged on images and timed.

    apply.py        schemes in order, each row measured, saved if it held: start here
    material.py     the model and the images, checked
    measure.py      top-1 accuracy, distance from the model as given, models timed in turns
    saved.py        directories that transformers loads, and loading them

For directories of `AutoModelForImageClassification`; which channels go is decided in
`pruning/channels/`. Language models have the rest of `compress/`.
"""
