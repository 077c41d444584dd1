"""Formats beside compressed-tensors that other people's programs load, one file each.

GGUF (llama.cpp), ONNX (onnxruntime), torch.export, and 2:4 as sparse tensor cores read it;
`exports.py` has them by the names that `--export` takes. Nothing is quantised here: it is all
decided before.
"""
