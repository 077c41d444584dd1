"""The text that a run is trained on, tokenised once, in an order that no world size changes.

    preparation.py  text → token shards, once → PreparedData; start reading here
    sources.py      documents of text files, JSONL, Parquet, saved datasets
    tokenizer.py    which tokenizer, or a new one
    tokenise.py     one tokenising process; workers.py runs several
    shards.py       the files, and all of them as one stream of tokens
    order.py        which sequence each sample of the run is
    sequences.py    one sample: packed or padded, with or without document masks
    loader.py       a rank's batches, read ahead and resumable

What may not enter: models, losses, collectives. Tokenising imports no torch.
"""
