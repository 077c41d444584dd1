"""Search: which layout of a training run is best, and what to serve a model on; why others lose.

The arithmetic of one layout is `cost/`'s; here layouts are enumerated, judged in bulk, ranked and
explained. No torch, no measuring. Start reading at `training.py`, for
serving at `serving/__init__.py`.
"""
