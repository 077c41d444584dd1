"""Neurons, heads and layers taken out: what is saved is dense, smaller, and loads anywhere.

    take_out.py   a model directory without them, block by block: start here
    places.py     where a block keeps them (places.toml), and what config.json calls their number
    columns.py    how much each is worth, from the matrix that reads it
    neurons.py    of the MLP; heads.py: of attention, whole key-value groups or evenly within them
    layers.py     whole blocks that hardly change what flows through them
    smaller.py    the config.json that fits, checked against the class of transformers that loads it

A Hugging Face config has one width for all layers, so every layer keeps as many; which ones, each
chooses for itself. Nothing here reads or writes weights' files.
"""
