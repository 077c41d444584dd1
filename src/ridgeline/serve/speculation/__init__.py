"""How tokens are guessed ahead, so that nothing changes but the speed.

`drafter.py` is what all who guess have in common: `ngram.py` looks the text's own past up,
`draft_model.py` asks a smaller model, `heads.py` extra heads on the model's own hidden states
(trained by `train_heads.py`), `eagle_drafter.py` a head that goes on from its own guesses
(`eagle.py`, trained by `train_eagle.py`, or published: `published_eagle.py`).
`sampling/sampler.py` decides which guesses stay, `pays.py` whether guessing pays at all.

A drafter may be as wrong as it likes: it changes the speed, never the distribution of the output.
"""
