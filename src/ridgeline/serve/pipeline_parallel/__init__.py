"""One model over several processes, each of which keeps some of its layers.

`stages.py` cuts a model behind its skeleton, reads a stage's weights, and passes states from stage
to stage. Ranks, their group and what drives them are those of `tensor_parallel/` and `engine/`.
"""
