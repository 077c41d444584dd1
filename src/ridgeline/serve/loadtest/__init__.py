"""A load test of any OpenAI-compatible server, which also judges itself.

When requests come and what the figures mean is `batching/load/`, because a simulation does the
same. Here `prompts.py` says what requests carry, `client.py` sends one and stamps its chunks,
`drive.py` sends them all, and `stage.py` refuses figures that tell of this program instead of the
server. Start reading at `run.py`.

Nothing here knows Ridgeline's own engine or server, and nothing here imports torch.
"""
