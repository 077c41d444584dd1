"""Where on the nodes of a cluster tasks are put, and what is then left over.

Tasks ask for CPU, memory and GPUs or a part of one; a rule scores the nodes that hold a task. Each
rule is a row of `rules.py`. Start reading at `nodes.py`, then `answer.py`.
"""
