"""What a Hugging Face checkpoint is, known once for all who read or write one.

    files.py               the tensors of a directory, one at a time
    writing.py             a directory written aside, shard by shard, and moved into place
    names.py               stored names, parameters' names, and what wrappers add to them
    skeleton.py            the model without weights, and where each stored tensor belongs in it
    layers.py              linear layers, GPT-2's transposed ones, experts: the weight matrices
    quantised.py           a weight in few bits
    compressed_tensors.py  such weights as vLLM and transformers store them; compressed_writer.py
    adapters.py            LoRA adapters as PEFT writes them, examined before they are trusted
    low_rank.py            the numbers of one that was
    tokenizer.py           which files are a tokenizer, and reading it
    digest.py              whether two copies of a checkpoint are the same

Start reading at `files.py`. torch, safetensors and transformers may be used here, and are imported
where they are used: this file loads nothing, and `adapters.py`, `tokenizer.py` and `digest.py` no
torch. What may not enter: how a model is compressed, served or trained; who does that stands above.
"""
