"""Performance engineering for PyTorch.

Point it at a training script, and it tells how far that is from what the hardware can do, says
why, closes the gap, and proves every step by measurement.

    doctor(command)           where the time goes, what bounds it, ranked cures
    checklist(groups, …)      the field's boxes, answered by what read_evidence(…) read
    tune(job)                 stack cures, prove each one, return the ledger
    compare_runs(a, b)        is the new run slower beyond noise?
    load_traces(paths)        profiler traces as columns, for the questions of `ridgeline trace`
    model_roofline(model, …)  every operator of a model under the roofs of devices
    device(name)              the facts of a device; this_machine() of the one we are on
    plan_training(model, …)   the best layout of a training run, and why the others lose
    predict_vision_training(model, …), predict_vision_inference, plan_vision_training,
    plan_vision_inference     the same for networks that look at images
    simulate_serving(load, …) a load on a fleet, by the very scheduler that serves
    train_asynchronously(…)   workers around a parameter server, no barrier between them
    train_recipe(recipe, …)   run a recipe: a language model on torch.distributed
    compress(material, …)     quantise, prune; every scheme a measured row, saved if it held
    Pipeline(name, …)         stages joined into a graph, with a deadline for each frame
    evaluate(model, text)     perplexity, token accuracy, KL to a reference, size

Everything here is loaded when it is first used; importing the package costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which would take most of the time of importing this
if TYPE_CHECKING:
    from typing import Any

    from ridgeline.compress.apply import compress
    from ridgeline.compress.evaluate.evaluate import evaluate
    from ridgeline.compress.material import Material
    from ridgeline.diagnose.checklist import checklist, read_evidence
    from ridgeline.diagnose.doctor import Examination, doctor
    from ridgeline.errors import RidgelineError
    from ridgeline.hardware import Device, device, this_machine
    from ridgeline.hardware.cluster import parse_cluster
    from ridgeline.measure.compare.comparison import Comparison, compare_runs
    from ridgeline.measure.compare.runs import read_run
    from ridgeline.measure.live.windows import MeasurementPlan
    from ridgeline.models import ModelSpec, load_model, parameter_count
    from ridgeline.plan.explain import explain
    from ridgeline.plan.model_roofline import model_roofline
    from ridgeline.plan.simulate.deployment import Deployment
    from ridgeline.plan.simulate.run import simulate_serving
    from ridgeline.plan.training.estimate import predict_training
    from ridgeline.plan.training.plan import plan_training
    from ridgeline.plan.training.validate import validate_training
    from ridgeline.plan.vision.inference import predict_vision_inference
    from ridgeline.plan.vision.search_inference import plan_vision_inference
    from ridgeline.plan.vision.search_training import plan_vision_training
    from ridgeline.plan.vision.training import predict_vision_training
    from ridgeline.realtime.pipeline import Pipeline, SensorReading, read_pipeline
    from ridgeline.records import Finding, Ledger, StepProfile
    from ridgeline.records.compression import CompressionLedger, Evaluation
    from ridgeline.records.load import Load
    from ridgeline.records.plan import Plan
    from ridgeline.records.recipe_file import read_recipe
    from ridgeline.techniques import all_techniques
    from ridgeline.trace.columns import Trace
    from ridgeline.trace.load import load_traces
    from ridgeline.train.asynchronous.rules import AsynchronousSettings
    from ridgeline.train.asynchronous.workers import AsynchronousRun, train_asynchronously
    from ridgeline.train.start import train_recipe
    from ridgeline.tune.job import TuneJob
    from ridgeline.tune.stack import run_with_stack
    from ridgeline.tune.tuner import tune

_HOMES = {
    "Comparison": "ridgeline.measure.compare.comparison",
    "CompressionLedger": "ridgeline.records.compression",
    "Deployment": "ridgeline.plan.simulate.deployment",
    "Device": "ridgeline.hardware",
    "Evaluation": "ridgeline.records.compression",
    "Examination": "ridgeline.diagnose.doctor",
    "Finding": "ridgeline.records",
    "Ledger": "ridgeline.records",
    "Load": "ridgeline.records.load",
    "Material": "ridgeline.compress.material",
    "MeasurementPlan": "ridgeline.measure.live.windows",
    "ModelSpec": "ridgeline.models",
    "Pipeline": "ridgeline.realtime.pipeline",
    "Plan": "ridgeline.records.plan",
    "RidgelineError": "ridgeline.errors",
    "SensorReading": "ridgeline.realtime.pipeline",
    "StepProfile": "ridgeline.records",
    "Trace": "ridgeline.trace.columns",
    "TuneJob": "ridgeline.tune.job",
    "all_techniques": "ridgeline.techniques",
    "checklist": "ridgeline.diagnose.checklist",
    "compare_runs": "ridgeline.measure.compare.comparison",
    "compress": "ridgeline.compress",
    "device": "ridgeline.hardware",
    "doctor": "ridgeline.diagnose.doctor",
    "evaluate": "ridgeline.compress.evaluate.evaluate",
    "explain": "ridgeline.plan.explain",
    "load_model": "ridgeline.models",
    "load_traces": "ridgeline.trace.load",
    "model_roofline": "ridgeline.plan.model_roofline",
    "parameter_count": "ridgeline.models",
    "parse_cluster": "ridgeline.hardware.cluster",
    "plan_training": "ridgeline.plan.training.plan",
    "plan_vision_inference": "ridgeline.plan.vision.search_inference",
    "plan_vision_training": "ridgeline.plan.vision.search_training",
    "predict_training": "ridgeline.plan.training.estimate",
    "predict_vision_inference": "ridgeline.plan.vision.inference",
    "predict_vision_training": "ridgeline.plan.vision.training",
    "read_evidence": "ridgeline.diagnose.checklist",
    "read_pipeline": "ridgeline.realtime.pipeline",
    "read_recipe": "ridgeline.records.recipe_file",
    "read_run": "ridgeline.measure.compare.runs",
    "run_with_stack": "ridgeline.tune.stack",
    "simulate_serving": "ridgeline.plan.simulate.run",
    "this_machine": "ridgeline.hardware",
    "AsynchronousRun": "ridgeline.train.asynchronous.workers",
    "AsynchronousSettings": "ridgeline.train.asynchronous.rules",
    "train_asynchronously": "ridgeline.train.asynchronous.workers",
    "train_recipe": "ridgeline.train.start",
    "tune": "ridgeline.tune",
    "validate_training": "ridgeline.plan.training.validate",
}
"""Public name → the module that defines it, or the room that it is the name of."""

__all__ = [
    "AsynchronousRun",
    "AsynchronousSettings",
    "Comparison",
    "CompressionLedger",
    "Deployment",
    "Device",
    "Evaluation",
    "Examination",
    "Finding",
    "Ledger",
    "Load",
    "Material",
    "MeasurementPlan",
    "ModelSpec",
    "Pipeline",
    "Plan",
    "RidgelineError",
    "SensorReading",
    "StepProfile",
    "Trace",
    "TuneJob",
    "all_techniques",
    "checklist",
    "compare_runs",
    "compress",
    "device",
    "doctor",
    "evaluate",
    "explain",
    "load_model",
    "load_traces",
    "model_roofline",
    "parameter_count",
    "parse_cluster",
    "plan_training",
    "plan_vision_inference",
    "plan_vision_training",
    "predict_training",
    "predict_vision_inference",
    "predict_vision_training",
    "read_evidence",
    "read_pipeline",
    "read_recipe",
    "read_run",
    "run_with_stack",
    "simulate_serving",
    "this_machine",
    "train_asynchronously",
    "train_recipe",
    "tune",
    "validate_training",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    import importlib

    home = importlib.import_module(_HOMES[name])
    return home if _HOMES[name] == f"ridgeline.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
