"""Changes to a pipeline and to the modules in its stages, made without the user's source.

    graph.py      the parts of a pipeline, to be exchanged and put together again: start here
    modules.py    which `nn.Module`s a stage reaches, by path
    layers.py     what is laid around the forward of a module, in a fixed order
    settle.py     what is pending in a value, computed
    pending.py    calls that wait to be computed as one batch
    shared_answers.py  modules of equal weights that see equal inputs
    in_turn.py    a share of a batch on each frame
    regions.py    a module computed on some tiles of its input only
    warp.py       feature maps in bird's eye view moved by the ego-motion
    programs.py   the forward of a module answered by another runtime
    preprocessing.py  what a Python preprocessing step does, found from its behaviour
    observe.py    what modules do during some frames

What may not enter: which change is worth trying (`cures/`), and measuring it (`tuning/`).
"""
