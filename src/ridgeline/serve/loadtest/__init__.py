"""A load test of any OpenAI-compatible server, which also judges itself.

`arrivals.py` says when requests are sent, `prompts.py` and `trace.py` what they carry, `client.py`
sends one and stamps its chunks, `drive.py` sends them all, `summary.py` turns the stamps into
figures by the definitions of `definitions.py`. `self_check.py` refuses figures that tell of this
program instead of the server. Start reading at `run.py`.

Nothing here knows Ridgeline's own engine or server, and nothing here imports torch.
"""
