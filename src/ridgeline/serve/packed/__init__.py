"""Models as they are multiplied, kept on disk so that the next start maps them.

`file.py` is the format: tensors on page boundaries behind a header, mapped and checked at once.
`layers.py` takes a model with packed layers apart into such a file and puts it together again,
`key.py` names an entry by all that it depends on, `entries.py` keeps the folder within its bound.
What is multiplied how is the business of `weights/`; what else a start proves once is
`model/kept.py`.
"""
