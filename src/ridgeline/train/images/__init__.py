"""Image classifiers as a task: pictures in, a model that transformers loads out.

    task.py           what a run of this kind consists of: start reading here
    prepared.py       which images are trained on and which held out; what only the data can say
    views.py          from a picture to what the model sees, by seed, epoch and place alone
    ring.py           worker processes that decode ahead into memory that all share
    feed.py           a rank's batches in an order that no world size changes
    batch.py          one micro-batch; MixUp and CutMix
    model.py          a model of transformers, or of a script; presets.toml
    loss.py           cross entropy with smoothed labels, and what is counted when it is judged
    statistics.py     batch norms: their statistics in checkpoints, and over ranks
    distillation.py   a teacher's logits, features and attention maps
    quantisation.py   convolutions and linears rounded in the forward pass

What may not enter: the reading of image files (`image_files/` has it), the training loop.
"""
