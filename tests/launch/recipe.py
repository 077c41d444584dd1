"""A recipe and a cluster that are enough to launch, whatever is trained."""

RECIPE = """
[model]
config = "gpt2"
[data]
path = "text"
seq = 128
[optimizer]
learning_rate = 1e-3
final_learning_rate = 1e-4
[layout]
"""
"""Its layout is open: the next lines say on how many processes."""
ON_FOUR = RECIPE + "dp = 4\nglobal_batch = 4\n"
NODES = """
[nodes]
devices = 2
cpus = 8
memory_bytes = 100_000_000_000
"""
KUBERNETES = """
[kubernetes]
image = "train:1"
queue = "research"
claim = "checkpoints"
"""
