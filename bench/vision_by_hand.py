"""Vision models under other runtimes, each converted as its own manual writes it.

The peers of `vision_vs_peers.py`. Nothing of ours is imported here.
"""

from __future__ import annotations

KINDS = (
    "eager", "eager bf16 channels-last", "compile", "AOTInductor", "ONNX Runtime",
    "ONNX Runtime int8", "OpenVINO f32", "OpenVINO bf16", "OpenVINO int8",
)  # fmt: skip


def by_hand(kind, model, images, folder):
    """A function from images to logits, as its manual writes it."""
    import torch

    threads = torch.get_num_threads()
    batch = torch.export.Dim.AUTO
    if kind == "eager":
        return model
    if kind == "eager bf16 channels-last":
        model = model.to(torch.bfloat16, memory_format=torch.channels_last)
        return lambda x: model(x.to(torch.bfloat16, memory_format=torch.channels_last)).float()
    if kind == "compile":
        return torch.compile(model)
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    if kind == "AOTInductor":
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/m.pt2")
        return torch._inductor.aoti_load_package(path)
    if kind.startswith("ONNX"):
        import onnxruntime

        path = f"{folder}/m.onnx"
        torch.onnx.export(program, dynamo=True, verbose=False).save(path)
        if kind.endswith("int8"):
            path = quantised_onnx(path, images)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        taken = session.get_inputs()[0].name
        return lambda x: torch.from_numpy(session.run(None, {taken: x.numpy()})[0])
    import nncf
    import openvino

    found = openvino.convert_model(program)
    if kind.endswith("int8"):
        shown = nncf.Dataset([one.numpy() for one in images[:64].split(1)])
        attention = any("attention" in name for name, _ in model.named_modules())
        scheme = nncf.ModelType.TRANSFORMER if attention else None
        found = nncf.quantize(found, shown, model_type=scheme, subset_size=64)
    hint = "bf16" if kind.endswith("bf16") else "f32"
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.compile_model(found, "CPU", settings)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def quantised_onnx(path, images):
    import onnxruntime.quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            import onnx

            name = onnx.load(path, load_external_data=False).graph.input[0].name
            self.rows = iter([{name: one.numpy()} for one in images[:64].split(1)])

        def get_next(self):
            return next(self.rows, None)

    quant_pre_process(path, f"{path}.ready", skip_symbolic_shape=True)
    made = f"{path}.int8.onnx"
    q.quantize_static(f"{path}.ready", made, Reader(), per_channel=True)
    return made
