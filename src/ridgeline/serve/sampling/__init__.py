"""How tokens are picked: from rows of logits to tokens, text and reasons to end.

`validate.py` refuses what cannot be served, `state.py` is what one completion carries from step to
step and how picked tokens become a part of it, `sampler.py` picks. The order is vLLM's: grammar,
min_tokens, logit_bias, penalties, temperature, min_p, top_k, top_p (`distribution.py`), draw;
drafts are checked in `sampler.py`.

No scheduling and no model is here: logits come in, tokens go out. A row's result depends on its own
logits, parameters, seed and history only, never on the batch that it happens to be in.
"""
