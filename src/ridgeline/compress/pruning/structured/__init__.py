"""Neurons, heads and layers pruned whole: what is saved is dense, smaller, and loads anywhere.

    prune.py      a model directory without them, block by block: start here
    places.py     where a block keeps them (places.toml), and what config.json calls their number
    units.py      how much neurons and heads are worth, which stay, and how the others are cut out
    layers.py     whole blocks that hardly change what flows through them
    smaller.py    the config.json that fits, checked against the class of transformers that loads it

A Hugging Face config has one width for all layers, so every layer keeps as many; which ones, each
chooses for itself. Only `prune.py` reads or writes weights' files.
"""
