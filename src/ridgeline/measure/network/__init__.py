"""Read a network off any `nn.Module`: its operators, seen as PyTorch dispatches them.

    count.py        one forward pass on the meta device becomes a `VisionNetwork`: start here
    recorder.py     the dispatch mode that sees every operator, and what each tensor is made of
    describe.py     one dispatched operator as a `VisionOperator`: shapes, kind, MACs
    build.py        from a name, a script, a folder or an exported program to a module
    torchvision_schemas.py  what a torchvision that was built for another torch lacks

What may not enter: costs, rates, and any single model's name.
"""
