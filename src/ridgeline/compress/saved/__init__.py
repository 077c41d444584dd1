"""Formats that other people's programs load, one file each.

compressed-tensors (transformers, vLLM, `ridgeline serve`), GGUF (llama.cpp), ONNX (onnxruntime),
torch.export. Nothing is rounded here: it is all decided before.
"""
