"""What a model is: layers, heads, experts; from presets and Hugging Face `config.json`.

Counts of parameters, not costs: FLOPs and bytes are the business of `cost/`. No torch, no
transformers, no download. Start reading at `spec.py`; `load.py` finds a model, `counts.py` counts
it, `families/` reads configurations, `presets/` holds the well-known ones, `table.py` reads rows of
published tables, `vision/` lists the operators of networks for images.
"""

from ridgeline.models.config import read_config, spec_from_config
from ridgeline.models.counts import (
    Parameters,
    active_parameter_count,
    embedding_parameters,
    layer_parameters,
    parameter_count,
    parameter_parts,
)
from ridgeline.models.flags import model_from_flags, model_from_text
from ridgeline.models.load import load_model
from ridgeline.models.presets import preset, preset_names
from ridgeline.models.spec import Experts, LatentAttention, ModelSpec, is_mixture
from ridgeline.models.table import TableModel, read_table_model, spec_from_table
from ridgeline.models.vision.network import VisionNetwork, VisionOperator
from ridgeline.models.vision.presets import load_network

__all__ = [
    "Experts",
    "LatentAttention",
    "ModelSpec",
    "Parameters",
    "TableModel",
    "VisionNetwork",
    "VisionOperator",
    "active_parameter_count",
    "embedding_parameters",
    "is_mixture",
    "layer_parameters",
    "load_model",
    "load_network",
    "model_from_flags",
    "model_from_text",
    "parameter_count",
    "parameter_parts",
    "preset",
    "preset_names",
    "read_config",
    "read_table_model",
    "spec_from_config",
    "spec_from_table",
]
