"""Inference with a model whose weights are no parameters: frozen, or quantised and packed."""

import sys
import warnings

import torch
from torch import nn
from torch.ao import quantization

warnings.simplefilter("ignore")
torch.manual_seed(0)
kind = sys.argv[1]
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).eval()
inputs = torch.randn(4, 64)

if "static" in kind:
    model = nn.Sequential(quantization.QuantStub(), model, quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    quantization.prepare(model, inplace=True)
    model(inputs)
    quantization.convert(model, inplace=True)
if "dynamic" in kind:
    quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)
if "scripted" in kind or "frozen" in kind:
    model = torch.jit.script(model)
if "frozen" in kind:
    model = torch.jit.freeze(model)

for _ in range(3000):
    model(inputs).argmax(-1).tolist()
