"""How good a model is: perplexity, token accuracy, distance from another model, size.

    evaluate.py   all of it, as `ridgeline evaluate` shows: start here
    text.py       a text as overlapping windows, each token scored once
    quality.py    one or two models over the same windows
    loaded.py     a directory as a model and its tokenizer
    judge.py      compressed models beside the one they were made from, and speed in turns
    allowance.py  how much may be lost, as `--max-loss` and `--target` say it
    sensitive.py  what each layer costs when it alone is compressed

What may not enter: compressing anything, and timing (speed is measured by the engine that serves).
"""
