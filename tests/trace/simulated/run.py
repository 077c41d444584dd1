"""Executes a program on a machine: `simulate(program, seed)` gives what a profiler would have seen.

One rank's main thread runs steps: batch, copy, forward, backward (on the autograd thread, for which
the main thread waits), collectives, optimizer, and whatever troubles the program has.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from tests.trace.simulated.host import (
    AUTOGRAD,
    MAIN,
    WATCHDOG,
    Blocking,
    Rank,
    Thread,
    kernel_name,
)
from tests.trace.simulated.machine import Machine, Work
from tests.trace.simulated.messages import Stage, pass_around
from tests.trace.simulated.program import Op, Program
from tests.trace.simulated.talk import DataParallel, collective
from tests.trace.simulated.trouble import (
    compile_again,
    host_optimizer,
    late_module,
    offload,
    pageable_copies,
    save,
    side_copy,
    side_work,
    small_copies,
    stop,
    stream_copy,
)

LOADER = {
    False: "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    True: "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
}


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """What happened on all ranks."""

    program: Program
    ranks: list[Rank]
    work: list[Work]
    steps: list[list[tuple[float, float]]]
    """Start and end of every step on the host, per rank."""

    def recorded_from_us(self, rank: int) -> float:
        """When the profiler of a rank starts to record: before everything, or at a step."""
        warm = self.program.warm
        return self.steps[rank][warm][0] if warm else float("-inf")

    @property
    def recorded_us(self) -> float:
        """Length of what is recorded, host and GPU."""
        return self.end_us - max(
            self.start_us, min(map(self.recorded_from_us, range(len(self.ranks))))
        )

    @property
    def duration_us(self) -> float:
        """From the first moment of the run to the last, host and GPU."""
        return self.end_us - self.start_us

    @property
    def start_us(self) -> float:
        return min(span.start_us for rank in self.ranks for span in rank.spans)

    @property
    def end_us(self) -> float:
        """The last moment."""
        ends = [span.start_us + span.duration_us for rank in self.ranks for span in rank.spans]
        ends += [one.end_us or 0.0 for one in self.work]
        return max(ends)


def simulate(program: Program, seed: int) -> Run:
    machine = Machine(program.trouble.slice_us, program.trouble.slice_every_us)
    ranks = [Rank(machine, program, at, seed) for at in range(program.parallel.ranks)]
    steps: list[list[tuple[float, float]]] = [[] for _ in ranks]
    machine.run([_Main(rank).run(steps[rank.number]) for rank in ranks])
    for rank in ranks:
        if program.watchdog:
            _watch(rank)
    return Run(program, ranks, machine.work, steps)


def _watch(rank: Rank) -> None:
    """A background thread that asks every 100 µs whether events have come."""
    end = max(span.start_us + span.duration_us for span in rank.spans)
    thread = Thread(rank, WATCHDOG)
    while thread.now < end - 200:
        thread.now += thread.jitter(95.0)
        thread.call("cudaEventQuery", thread.jitter(1.6))


class _Main:
    """The main thread of one rank."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.program = rank, rank.program
        self.main = Thread(rank, MAIN)
        self.autograd = Thread(rank, AUTOGRAD)
        self.talk = DataParallel(rank)
        self.stage = Stage(rank)
        self.made: list[float] = []
        """When the loader's workers had made each batch."""
        self.taken: list[float] = []
        self.at_stall = False
        self.buffers = 0

    def run(self, steps: list[tuple[float, float]]) -> Blocking:
        main, trouble = self.main, self.program.trouble
        if trouble.lead_us:
            with main.span("python", "train.py(31): build_model"):
                main.work(trouble.lead_us)
        for number in range(self.program.steps):
            for thread in (main, self.autograd):
                thread.begin(number)
            began = main.now
            with main.span("annotation", f"ProfilerStep#{number + 5}"):
                if number == 0:
                    yield from self.start_up()
                yield from self.step(number)
            steps.append((began, main.now))
        if self.program.on_gpu:
            yield from self.drain("cudaDeviceSynchronize")

    def start_up(self) -> Blocking:
        start, main = self.program.start_up, self.main
        for _ in range(start.mallocs):
            with main.span("cpu_op", "aten::empty"):
                main.work(3.0)
                main.call("cudaMalloc", main.jitter(start.malloc_us))
        if start.handle_us:
            with main.span("cpu_op", "aten::mm"):
                main.call("cudaStreamCreateWithFlags", main.jitter(0.3 * start.handle_us))
                yield from self.drain("cudaFree", 0.7 * start.handle_us)

    def drain(self, call: str, floor_us: float = 3.0) -> Blocking:
        """Wait for every stream of this rank."""
        lines = [line for (rank, _), line in self.rank.machine.streams.items()
                 if rank == self.rank.number]  # fmt: skip
        for line in lines:
            if line[-1].end_us is None:
                yield line[-1]
        latest = max((line[-1] for line in lines), key=lambda one: one.end_us or 0, default=None)
        yield from self.main.wait(call, latest, floor_us)

    def step(self, number: int) -> Blocking:
        main, trouble = self.main, self.program.trouble
        main.work(self.program.host.python_us * 6)
        yield from self.batch(number)
        if trouble.prepare_us:
            with main.span("python", "train.py(88): prepare_inputs"):
                main.work(trouble.prepare_us)
        if self.rank.number == trouble.late_rank and trouble.late_host_us:
            with main.span("python", "train.py(93): build_targets"):
                main.work(trouble.late_host_us)
        if not self.program.on_gpu:
            for op in self.program.ops:
                self.on_cpu(main, op)
            return
        self.at_stall = number in trouble.stall_steps
        yield from pageable_copies(main)
        yield from stream_copy(main)
        yield from small_copies(main)
        if self.program.parallel.kind == "pipeline":
            yield from self.pipeline()
        else:
            for at in range(self.program.passes):
                yield from self.forward(number)
                if self.program.backward:
                    yield from self.backward(last_pass=at == self.program.passes - 1)
        if trouble.host_optimizer_us:
            yield from host_optimizer(main)
        elif self.program.optimizer:
            with main.span("annotation", "Optimizer.step#AdamW.step"):
                for op in self.program.optimizer:
                    yield from self.operator(main, op)
        yield from offload(main)
        if number == self.program.steps // 2:
            yield from save(main)
            yield from self.evaluate()
        if self.program.stops.per == "step":
            yield from stop(main)
        if trouble.finish_us:
            with main.span("python", "train.py(140): log_metrics"):
                main.work(trouble.finish_us)

    def batch(self, number: int) -> Blocking:
        loader, main = self.program.loader, self.main
        if loader is None:
            return
        named = main.span("annotation", LOADER[loader.workers > 0])
        with named if loader.annotated else nullcontext():
            if loader.workers:
                self.make_batches(number)
                main.now = max(main.now + main.jitter(60.0), self.made[number])
            else:
                with main.span("python", "dataset.py(57): __getitem__"):
                    main.work(loader.batch_us)
        self.taken.append(main.now)
        if loader.bytes and self.program.on_gpu:
            with main.span("cpu_op", "aten::to"), main.span("cpu_op", "aten::_to_copy"):
                main.work(8.0, 0.2)
                with main.span("cpu_op", "aten::copy_"):
                    if loader.pinned:
                        yield from main.copy("HtoD", loader.bytes, pinned=True)
                    else:
                        yield from main.blocking_copy("HtoD", loader.bytes, pinned=False)

    def make_batches(self, number: int) -> None:
        """Workers make batches in turn, each at most `prefetch` ahead of what was taken."""
        loader = self.program.loader
        assert loader is not None
        ahead = loader.prefetch * loader.workers
        while len(self.made) <= number:
            at = len(self.made)
            if at < loader.workers:  # they have been at work since before the window
                self.made.append(at / loader.workers * loader.batch_us)
                continue
            asked = self.taken[at - ahead] if at >= ahead else 0.0
            began = max(self.made[at - loader.workers], asked)
            self.made.append(began + self.main.jitter(loader.batch_us, 0.05))

    def pipeline(self) -> Blocking:
        """This rank's layers forward and backward, micro-batch after micro-batch."""
        program, main = self.program, self.main
        for forward in self.stage.order(program.passes):
            ops, step = (program.forward, 1) if forward else (program.backward, -1)
            yield from self.stage.receive(main, -step)
            for op in self.stage.own(ops):
                yield from self.operator(main, op)
            yield from self.stage.send(main, step)

    def forward(self, number: int) -> Blocking:
        yield from side_work(self.main)
        yield from side_copy(self.main)
        if number == self.program.steps // 2:
            yield from late_module(self.main)
            compile_again(self.main)
        if self.program.graph:
            yield from self.replay()
            return
        layer, middle = -1, len(self.program.forward) // 2
        for at, op in enumerate(self.program.forward):
            if op.layer != layer:
                if self.program.stops.per == "layer" and layer >= 0:
                    yield from stop(self.main)
                layer = op.layer
                yield from self.talk.enter_layer(self.main, op.layer, forward=True)
                if self.program.parallel.kind == "ring":
                    yield from pass_around(self.main)
            if at == middle and number == self.program.steps // 2 and self.program.trouble.gap_us:
                with self.main.span("python", "callbacks.py(210): on_evaluate"):
                    self.main.work(self.program.trouble.gap_us)
            if at == middle and self.program.trouble.pause_us:
                self.main.work(self.program.trouble.pause_us)
            yield from self.operator(self.main, op)

    def evaluate(self) -> Blocking:
        """Forward passes over data that were held back."""
        with self.main.span("python", "train.py(160): evaluate"):
            for _ in range(self.program.trouble.evaluations):
                for op in self.program.forward:
                    yield from self.operator(self.main, op)

    def replay(self) -> Blocking:
        """All kernels of the forward pass from one launch."""
        main, kernels = self.main, [one for op in self.program.forward for one in op.all_kernels()]
        main.work(20.0, 0.2)
        yield from main.room(self.rank.compute)
        number = main.next_correlation()
        main.call("cudaGraphLaunch", main.jitter(12.0 + 0.05 * len(kernels)), number)
        for kernel in kernels:
            work = Work(
                self.rank.number, self.rank.compute, kernel_name(kernel.sort, self.rank.gpu.key),
                "kernel", main.slowness[kernel.bound(self.rank.gpu)]
                * main.jitter(kernel.time_us(self.rank.gpu), 0.02), main.now - 0.3, number,
                {"blocks": kernel.blocks, "graph id": 7}, in_graph=True,
            )  # fmt: skip
            self.rank.machine.submit(work)

    def backward(self, *, last_pass: bool) -> Blocking:
        thread = self.autograd
        thread.now = self.main.now + thread.jitter(25.0)
        layer, last = -1, len(self.program.backward) - 1
        for at, op in enumerate(self.program.backward):
            if op.layer != layer:
                layer = op.layer
                yield from self.talk.enter_layer(thread, op.layer, forward=False)
            with thread.span("cpu_op", f"autograd::engine::evaluate_function: {op.name}"):
                yield from self.operator(thread, op)
            if last_pass or self.program.parallel.each_pass:
                yield from self.talk.gradients(thread, op, last=at == last)
        self.main.now = thread.now + thread.jitter(15.0)
        self.talk.join(self.main)

    def on_cpu(self, thread: Thread, op: Op) -> None:
        """An operator without a GPU: some 0.5 TFLOP/s and 40 GB/s."""
        thread.work(self.program.host.python_us, 0.2)
        with thread.span("cpu_op", op.name, op=op):
            thread.work(4.0, 0.2)
            for kernel in op.all_kernels():
                thread.work(1e6 * max(kernel.flops / 0.5e12, kernel.bytes / 40e9) + 1, 0.05)

    def operator(self, thread: Thread, op: Op) -> Blocking:
        host = self.program.host
        thread.now += thread.jitter(host.python_us)
        if host.slow_python_us:
            with thread.span("python", "model.py(214): masked_update"):
                thread.now += thread.jitter(host.slow_python_us)
        if op.collective:
            yield from collective(thread, op.collective, self.rank.compute)
            return
        with thread.span("cpu_op", op.name, op=op):
            yield from self.allocate(thread, op)
            yield from self.inside(thread, op)

    def inside(self, thread: Thread, op: Op) -> Blocking:
        """An operator's own dispatch, its parts, its launches."""
        share = self.program.host.dispatch_us / (1 + len(op.parts))
        busy = bool(op.kernels or op.parts)
        thread.now += thread.jitter(0.5 * share if busy else 3.0)
        for part in op.parts:
            with thread.span("cpu_op", part.name, op=part):
                yield from self.inside(thread, part)
            thread.now += thread.jitter(0.5)
        for kernel in op.kernels:
            stall = self.program.trouble.stall_us if self.at_stall else 0.0
            self.at_stall = False
            yield from thread.launch(kernel.sort, kernel.time_us(self.rank.gpu),
                                     bound=kernel.bound(self.rank.gpu), blocks=kernel.blocks,
                                     stall_us=stall)  # fmt: skip
            thread.now += thread.jitter(0.2 * share)
        thread.now += thread.jitter(0.3 * share if busy else 0.5)

    def allocate(self, thread: Thread, op: Op) -> Blocking:
        """Without a caching allocator every buffer is asked of the driver, and given back.

        `cudaFree` returns when the device has done all that was launched.
        """
        pairs = self.program.trouble.frees_per_step
        if not pairs or not op.all_kernels():
            return
        every = max(1, sum(1 for one in self.program.ops if one.all_kernels()) // pairs)
        self.buffers += 1
        if self.buffers % every:
            return
        thread.call("cudaMalloc", thread.jitter(90.0))
        yield from thread.wait("cudaFree", thread.last(), 110.0)
