"""The questions of `ridgeline trace`: one row per subcommand.

A row names what a subcommand tells and, for most, the analysis that answers it for one trace and
the view that shows the records of all: `cli/trace.py` makes the command out of that. To add a
question, write the analysis in `trace/`, the view in `report/views/`, and a row here. A row
without an analysis has a function of its own in the file that it names.

Whoever asks for `ridgeline --help` waits for this module, so it imports nothing.
"""

from __future__ import annotations


class TraceQuestion:
    """What a subcommand tells and how it is answered."""

    def __init__(
        self,
        tells: str,
        *,
        analysis: str = "",
        view: str = "",
        rows: str = "",
        options: dict[str, object] | None = None,
        details: bool = False,
        module: str = "trace",
    ) -> None:
        self.tells = tells
        """One line for the list of commands, in small letters and without a full stop."""
        self.analysis = analysis
        """`module:function` of a trace and the options: a record, or a list with one per GPU."""
        self.view = view
        """`module:function` of the records of all traces."""
        self.rows = rows
        """The list in a record whose members `--out` writes as rows; empty: the record itself."""
        self.options = options or {}
        """Options of the command besides those that all have, each with its default."""
        self.details = details
        """Does the analysis need shapes, call stacks and sequence numbers?"""
        self.module = module
        """The file of this room with the command."""


QUESTIONS = {
    "summary": TraceQuestion(
        "where the time went on each GPU: busy, idle, exposed; what bounds it"
    ),
    "idle": TraceQuestion(
        "why the GPU waited, what the host did meanwhile, and the largest gaps",
        analysis="ridgeline.trace.time.idle:idle_time",
        view="ridgeline.report.views.trace:idle_document",
        rows="gaps",
        options={"window": "trace", "top": 10},
        details=True,
    ),
    "kernels": TraceQuestion(
        "GPU time by kernel and class, tensor cores, occupancy, roofline position",
        analysis="ridgeline.trace.time.kernels:kernel_use",
        view="ridgeline.report.views.trace:kernels_document",
        rows="kernels",
        options={"window": "trace", "top": 30},
        details=True,
    ),
    "sequences": TraceQuestion(
        "kernels that follow each other again and again; chains to fuse, and their worth",
        analysis="ridgeline.trace.time.sequences:kernel_sequences",
        view="ridgeline.report.views.trace_sequences:sequences_document",
        rows="sequences",
        options={"window": "trace", "longest": 8, "top": 12},
        details=True,
    ),
    "overlap": TraceQuestion(
        "how much communication and copying hides behind compute",
        analysis="ridgeline.trace.communication.overlap:overlap",
        view="ridgeline.report.views.trace:overlap_document",
        options={"window": "trace", "top": 10},
    ),
    "communication": TraceQuestion(
        "collectives by kind, group and size, with their bandwidth",
        analysis="ridgeline.trace.communication.host_collectives:all_communication",
        view="ridgeline.report.views.trace:communication_document",
        rows="collectives",
        options={"window": "trace", "top": 30},
        details=True,
    ),
    "copies": TraceQuestion(
        "copies and fills by direction, their bandwidth over time, and offload",
        analysis="ridgeline.trace.time.copies:copies",
        view="ridgeline.report.views.trace_copies:copies_document",
        options={"window": "trace"},
    ),
    "launch": TraceQuestion(
        "whether the GPU waits for launches: delays, queue depth, CUDA graphs",
        analysis="ridgeline.trace.time.launch:launches",
        view="ridgeline.report.views.trace:launch_document",
        options={"window": "trace"},
    ),
    "queue": TraceQuestion(
        "how much launched work waits on each stream over time; blocked on a full queue",
        analysis="ridgeline.trace.time.queue_length:queue_lengths",
        view="ridgeline.report.views.trace_host:queues_document",
        rows="queues",
        options={"window": "trace"},
    ),
    "sync": TraceQuestion(
        "every wait of the host for the GPU, the line that asks for it, its cost",
        analysis="ridgeline.trace.time.sync:sync_points",
        view="ridgeline.report.views.trace_host:sync_document",
        rows="points",
        options={"window": "trace", "top": 20},
        details=True,
    ),
    "steps": TraceQuestion(
        "each profiler step with its phases, the variation, and the outlier",
        analysis="ridgeline.trace.time.steps:step_times",
        view="ridgeline.report.views.trace_steps:steps_document",
        rows="steps",
    ),
    "operators": TraceQuestion(
        "host and GPU time by operator, by input shape, or by the line that calls it",
        analysis="ridgeline.trace.time.operators:operator_times",
        view="ridgeline.report.views.trace_host:operators_document",
        rows="operators",
        options={"by": "name", "window": "trace", "top": 30},
        details=True,
    ),
    "modules": TraceQuestion(
        "host and GPU time by nn.Module, forward and backward, as a tree of the model",
        analysis="ridgeline.trace.time.modules:module_times",
        view="ridgeline.report.views.trace_structure:modules_document",
        rows="modules",
        options={"window": "trace", "top": 60},
        details=True,
    ),
    "annotations": TraceQuestion(
        "host and GPU time, GPU idle and MFU by record_function and NVTX range",
        analysis="ridgeline.trace.time.annotations:annotation_times",
        view="ridgeline.report.views.trace_structure:annotations_document",
        rows="ranges",
        options={"window": "trace", "tree": False, "top": 40},
        details=True,
    ),
    "memory": TraceQuestion(
        "memory over time, from a trace or a snapshot: peak, growth, who holds it"
    ),
    "critical-path": TraceQuestion(
        "what made the run as long as it was, moment by moment; what-if", module="trace_across"
    ),
    "stragglers": TraceQuestion(
        "which rank arrives last at collectives, and what the others wait", module="trace_across"
    ),
    "ranks": TraceQuestion(
        "kernel times over ranks: mean, extremes, spread, ranks that stand out",
        module="trace_across",
    ),
    "compare": TraceQuestion(
        "what is new, gone, slower or faster in B; exit 3 when B is slower", module="trace_across"
    ),
    "tree": TraceQuestion(
        "frames, operators and calls inside each other, with host and GPU time",
        module="trace_drawn",
    ),
    "stack": TraceQuestion(
        "folded stacks on stdout, as flamegraph.pl and speedscope read them", module="trace_drawn"
    ),
    "export": TraceQuestion(
        "the trace for Perfetto, with counters and the critical path beside it",
        module="trace_drawn",
    ),
    "counters": TraceQuestion(
        "what bounds each kernel by Nsight Compute's counters, and what its warps wait for",
        module="trace_counters",
    ),
    "report": TraceQuestion(
        "one HTML page with a timeline, a flame graph and every table", module="trace_drawn"
    ),
}
"""Subcommand → its question."""
TRACE_COMMANDS = {
    f"trace {word}": (f"ridgeline.cli.{question.module}", question.tells)
    for word, question in QUESTIONS.items()
}
"""The rows of the program's table of commands."""
