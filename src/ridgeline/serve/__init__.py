"""An LLM engine and an OpenAI-compatible server around it.

`engine/` turns the steps that `batching/` orders into tokens; `model/` runs any Hugging Face causal
LM over a KV cache in blocks (`cache.py`); `sampling/` picks tokens, `speculation/` guesses them
ahead, `weights/` shrinks them, `adapters/` mixes LoRA into one batch; `http/` is the API,
`cluster/` what lies past one process, and `ray_serve.py` puts the whole server on Ray. The engine
runs in a process of its own (`process/`); `messages.py` is all that passes between it and the API.
Start reading at `messages.py`, then `engine/engine.py`.

No scheduling decision is taken here (that is `batching/`), no kernel is written here (`kernels/`),
and nothing here trains or compresses.
"""
