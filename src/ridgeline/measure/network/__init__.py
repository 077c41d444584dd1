"""Read a network off any `nn.Module`: its operators, seen as PyTorch dispatches them.

    count.py        one forward pass on the meta device becomes a `VisionNetwork`: start here
    recorder.py     the dispatch mode that sees every operator, and what each tensor is made of
    describe.py     one dispatched operator as a `VisionOperator`: shapes, kind, MACs
    source.py       which network a word names: a preset, or what has to be built
    build.py        from a library's name, a script or a folder to a module without weights
    exported.py     an exported program, as its graph runs

and, for every command that opens a model which the user names:

    scripted.py     what `script.py:NAME` makes
    program.py      an exported program (`.pt2`)
    directory.py    a directory that transformers wrote
    libraries.py    an architecture of timm or torchvision
    weights.py      a file of weights

What may not enter: costs, rates, and any single model's name.
"""

LIBRARIES = ("timm", "torchvision")
"""Where a name that no preset has is looked up, in this order."""
