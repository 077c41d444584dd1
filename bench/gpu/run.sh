#!/bin/bash
# Every GPU check and benchmark in one call of less than eight minutes, each part with its own
# limit: correctness first, then speed; prints Markdown that goes to docs/results/ as it is.
#
#     bench/gpu/run.sh [PYTHON]
#
# PYTHON has a CUDA build of torch and Ridgeline's core dependencies; default: python3. Nothing is
# installed. Exit code 1: a check failed (the benchmarks are then not run), or a part did not end.
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

failed=0
# part TITLE SECONDS COMMAND…: what does not end in its time is cut off, and the next part begins.
part() {
    local title=$1 limit=$2
    shift 2
    printf '## %s\n\n' "$title"
    timeout --signal=INT --kill-after=5 "$limit" "$@" || {
        failed=1
        printf '\n(%s: ended with %s; its limit is %s s)\n' "$title" "$?" "$limit"
    }
    echo
}

# 475 seconds in all. Correctness comes first: without it no speed is of use.
tests=$(grep -rl --include 'test_*.py' 'mark\.gpu' tests)
beside=$("$python" -c 'import importlib.util as u; print("-n 8" if u.find_spec("xdist") else "")')
# shellcheck disable=SC2086  (each word of these is an argument)
part "Correctness" 110 "$python" -m pytest -q -p no:benchmark -p no:cacheprovider $beside -m gpu \
    $tests tests/kernels/triton
if [ "$failed" = 1 ]; then
    exit 1
fi
part "Kernels" 100 "$python" bench/gpu/training_kernels.py
part "Training recipes" 70 "$python" bench/gpu/train_recipes.py
part "Serving" 70 "$python" bench/gpu/serve.py
part "Vision inference" 45 "$python" bench/gpu/vision.py
part "A camera pipeline at its frame rate" 35 "$python" bench/gpu/realtime.py
part "Tuning the examples" 45 "$python" bench/gpu/tune_examples.py 15
exit "$failed"
