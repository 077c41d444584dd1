"""What a model does with the images of a prompt before its language model begins.

A vision-language model is a language model whose prompt may have images: placeholder tokens, whose
embeddings are replaced by what a vision tower and a projector made of the image. Tower, projector
and processor are transformers' own. The language model is served like any other; nothing here knows
of steps, requests or HTTP. Start with `model.py`.
"""
