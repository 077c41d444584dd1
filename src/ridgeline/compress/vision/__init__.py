"""Vision models quantised after training: convolutions, linear layers, attention, in any graph.

    quantise.py      a model, calibration batches and a scheme become a `QuantisedVision`: start here
    graph.py         the model as torch.export sees it; clear refusals
    folding.py       batch normalisation folded, attention taken apart into its two products
    points.py        where tensors are rounded, and which of them share a scale
    ranges_apart.py  concatenations whose parts differ by orders of magnitude stay in float
    nodes.py         what rounds: modules that are put into the graph
    calibrate.py     ranges from batches
    equalise.py      cross-layer equalisation, high biases absorbed
    weights.py       weights rounded: to nearest, GPTQ; adaround.py: learned rounding
    bias.py          biases corrected by what rounding moved
    sensitivity.py   what each layer costs alone, ranked; mixed.py: the worst ones back in float
    qdq_onnx.py      ONNX with QuantizeLinear and DequantizeLinear, for int8 kernels

Numerics that training shares (fake quantisation with gradients, observers, folding of batch
normalisation) lie lower: `kernels/fake_quantisation/`. Grids and weight observers are those of
language models: `compress/rounding.py`.

What may not enter: images on disk, labels, accuracy, what is saved (`compress/images/`); training.
"""
