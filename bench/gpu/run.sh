#!/bin/bash
# Every GPU check and benchmark in one call, each part with its own limit: correctness first, then
# speed; prints Markdown that goes to docs/results/ as it is.
#
#     bench/gpu/run.sh [PYTHON]
#
# PYTHON has a CUDA build of torch and Ridgeline's core dependencies; default: python3. Nothing is
# installed. Exit code 1: a check failed (the benchmarks are then not run).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"

"$python" - <<'CHECK'
import importlib.util, sys
needed = ("torch", "numpy", "msgspec", "typer", "rich", "plotly", "libcst", "tomli_w", "pytest",
          "hypothesis", "pytest_timeout", "sklearn", "transformers", "accelerate", "torchdata",
          "tokenizers", "pyarrow", "tensorboard", "triton", "xgrammar")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"bench/gpu/run.sh: {sys.executable} lacks {', '.join(missing)}")
import torch
if not torch.cuda.is_available():
    sys.exit(f"bench/gpu/run.sh: torch {torch.__version__} sees no GPU here")
CHECK

echo "## Correctness"
echo
timeout 120 "$python" -m pytest -m gpu tests | tail -n 15
echo
echo "## Kernels"
echo
timeout 150 "$python" bench/gpu/training_kernels.py
echo
echo "## Training recipes"
echo
timeout 120 "$python" bench/gpu/train_recipes.py
echo
echo "## Tuning the examples"
echo
timeout 200 "$python" bench/gpu/tune_examples.py
echo
echo "## Serving"
echo
timeout 300 "$python" bench/gpu/serve.py
echo
echo "## Vision inference"
echo
timeout 180 "$python" bench/gpu/vision.py
echo
echo "## A camera pipeline at its frame rate"
echo
timeout 120 "$python" bench/gpu/realtime.py
