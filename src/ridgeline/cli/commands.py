"""The commands of `ridgeline`: the module of each, its line of help and its panel in the overview.

A new command is one file in this room and one row here.
"""

from ridgeline.cli.trace_questions import TRACE_COMMANDS

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("ridgeline.cli.doctor", "where a script's time goes, what bounds it, the cures"),
    "tune": ("ridgeline.cli.tune", "stack cures, prove each one, write the ledger"),
    "run": ("ridgeline.cli.run", "run a script with a proven stack applied"),
    "techniques": ("ridgeline.cli.techniques", "what tune can apply: cures, costs, equivalence"),
    "checklist": ("ridgeline.cli.checklist", "the field's boxes, answered by what was recorded"),
    "compare": ("ridgeline.cli.compare", "regression gate: exit 3 when slower beyond noise"),
    "bisect": ("ridgeline.cli.bisect", "the git commit that made a command slower"),
    "hardware": ("ridgeline.cli.hardware", "what this machine is, and its measured peaks"),
    **TRACE_COMMANDS,
    "roofline": ("ridgeline.cli.roofline", "every operator of a model under the roofs of devices"),
    "predict training": ("ridgeline.cli.predict_training", "what one layout will need and take"),
    "predict scaling": ("ridgeline.cli.predict_scaling", "a run's length on ever more devices"),
    "predict system": ("ridgeline.cli.predict_system", "a network from its data to the vehicle"),
    "predict memory": ("ridgeline.cli.predict_memory", "what is alive when in a training step"),
    "predict inference": ("ridgeline.cli.predict_inference", "latency of a network for images"),
    "predict compression": ("ridgeline.cli.predict_compression", "schemes of a model side by side"),
    "predict stack": ("ridgeline.cli.predict_stack", "a proven stack with rows of it left out"),
    "predict serving": ("ridgeline.cli.predict_serving", "latency and throughput of one replica"),
    "validate training": ("ridgeline.cli.validate", "error against published runs"),
    "validate serving": ("ridgeline.cli.validate", "error against published served runs"),
    "validate vision": ("ridgeline.cli.validate", "error against published vision runs"),
    "plan training": ("ridgeline.cli.plan_training", "the best layout for a training run, and why"),
    "plan inference": (
        "ridgeline.cli.plan_inference",
        "device, runtime, batch for images, and cost",
    ),
    "plan serving": ("ridgeline.cli.plan_serving", "GPUs, layout and cost for a served load"),
    "train": ("ridgeline.cli.train", "run a recipe: train a model on as many processes as it says"),
    "launch": ("ridgeline.cli.launch", "run a recipe on a cluster; --check judges manifests"),
    "launch status": ("ridgeline.cli.launch_runs", "how a launched run stands, and why it waits"),
    "launch logs": ("ridgeline.cli.launch_runs", "all ranks' logs as one, the first error first"),
    "launch cancel": ("ridgeline.cli.launch_runs", "end a launched run and what belongs to it"),
    "compress": ("ridgeline.cli.compress", "a smaller, faster model, and the loss it costs"),
    "compress chain": (
        "ridgeline.cli.compress_chain",
        "prune, distil, round: a ledger",
    ),
    "export": ("ridgeline.cli.export", "a model for other runtimes, checked and measured"),
    "evaluate": ("ridgeline.cli.evaluate", "perplexity, KL to a reference, size, decode speed"),
    "serve": ("ridgeline.cli.serve", "an LLM behind an OpenAI-compatible API"),
    "generate": ("ridgeline.cli.generate", "answers from a language model, without a server"),
    "bench decode": ("ridgeline.cli.bench_decode", "decoding beside the memory's read bandwidth"),
    "draft-heads": ("ridgeline.cli.draft_heads", "train heads that guess tokens ahead"),
    "kernels list": ("ridgeline.cli.kernels", "the compiled CPU kernels, and where they lie"),
    "kernels build": ("ridgeline.cli.kernels", "compile the CPU kernels ahead of their first use"),
    "kernels check": (
        "ridgeline.cli.kernels_check",
        "a doctor for Triton kernels that needs no GPU; exit 3 with findings",
    ),
    "kernels bench": (
        "ridgeline.cli.kernels",
        "training kernels beside compiled and library ones, on the GPU at hand",
    ),
    "kernels occupancy": (
        "ridgeline.cli.kernels",
        "warps that a multiprocessor holds, and what limits them",
    ),
    "packed list": ("ridgeline.cli.packed", "weights that serve keeps packed for its next start"),
    "packed empty": ("ridgeline.cli.packed", "remove them; the next start makes them anew"),
    "lesson": (
        "ridgeline.cli.lesson",
        "how kernels reach the limit: predicted, counted, and your own marked",
    ),
    "loadtest": ("ridgeline.cli.loadtest", "load on a server: TTFT, ITL, goodput, saturation"),
    "simulate batching": (
        "ridgeline.cli.simulate_batching",
        "static, dynamic and continuous batching side by side",
    ),
    "simulate serving": (
        "ridgeline.cli.simulate_serving",
        "a load on a fleet, by the very scheduler that serves",
    ),
    "realtime run": ("ridgeline.cli.realtime_run", "a pipeline at its frame rate, and a gate"),
    "realtime simulate": (
        "ridgeline.cli.realtime_simulate",
        "a pipeline as it could be, on the samples of a run",
    ),
    "realtime tune": ("ridgeline.cli.realtime_tune", "stack cures of a pipeline, prove each one"),
    "queue doctor": (
        "ridgeline.cli.queue_doctor",
        "what keeps a cluster's GPUs from work, and the cure",
    ),
    "queue place": (
        "ridgeline.cli.queue_place",
        "what rules of placement leave of a cluster",
    ),
    "queue share": (
        "ridgeline.cli.queue_share",
        "GPUs split among models by MIG, MPS, time-slicing",
    ),
    "queue simulate": (
        "ridgeline.cli.queue_simulate",
        "a trace of jobs under the policies of a queue",
    ),
    "calc": ("ridgeline.cli.calc", "one textbook formula, from its arguments"),
    "drill": ("ridgeline.cli.drill", "timed questions of a performance engineer's interview"),
    "explain": ("ridgeline.cli.explain", "why one estimate beats another, term by term"),
    "studio": ("ridgeline.cli.studio", "limits and trade-offs under your hands, in the browser"),
}
"""Command → (module, one line of help). The module defines a function of the command's name, with
`_` for every other sign: `kernels list` is `kernels_list` in `cli/kernels.py`."""

PANELS: dict[str, str] = {
    word: panel
    for panel, words in {
        "Measure a script and close its gap": "doctor tune run techniques checklist compare bisect"
        " hardware",
        "Plan before a GPU-hour is spent": "roofline predict plan simulate explain validate calc",
        "Train and launch": "train launch queue",
        "Serve": "serve generate loadtest bench draft-heads kernels packed",
        "Meet a frame deadline": "realtime",
        "Compress and export": "compress export evaluate",
        "Read traces": "trace",
        "Look and learn": "studio lesson drill",
    }.items()
    for word in words.split()
}
"""First word of a command → the panel of `ridgeline --help` that shows it; panels in their order.
"""
