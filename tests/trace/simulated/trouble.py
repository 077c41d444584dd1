"""What a faulty program does beside its operators: waits, copies, side streams, late modules.

Each takes the launching thread, and does nothing where its program has no such trouble.
"""

from __future__ import annotations

from tests.trace.simulated.host import COPIES, SIDE, Blocking, Thread


def pageable_copies(main: Thread) -> Blocking:
    """Tensors of pageable memory move to the device."""
    trouble = main.rank.program.trouble
    for _ in range(trouble.copies_per_step):
        with main.span("cpu_op", "aten::to"), main.span("cpu_op", "aten::copy_"):
            main.work(6.0, 0.2)
            yield from main.blocking_copy("HtoD", trouble.copy_bytes, pinned=False)


def stream_copy(main: Thread) -> Blocking:
    """A batch moves in front of the kernels, in their stream."""
    size = main.rank.program.trouble.stream_copy_bytes
    if size:
        with main.span("cpu_op", "aten::to"), main.span("cpu_op", "aten::copy_"):
            main.work(9.0, 0.2)
            yield from main.copy("HtoD", size, pinned=True)


def small_copies(main: Thread) -> Blocking:
    """Numbers go to the device one by one, without a wait."""
    for _ in range(main.rank.program.trouble.small_copies):
        with main.span("cpu_op", "aten::to"), main.span("cpu_op", "aten::copy_"):
            main.work(9.0, 0.2)
            yield from main.copy("HtoD", 4096, pinned=True)


def host_optimizer(main: Thread) -> Blocking:
    """Gradients go to the host, an optimizer there works on them, and weights come back."""
    trouble = main.rank.program.trouble
    with main.span("cpu_op", "aten::copy_"):
        yield from main.blocking_copy("DtoH", trouble.host_optimizer_bytes, pinned=True)
    with main.span("cpu_op", "DeepSpeedCPUAdam::adam_update"):
        main.work(trouble.host_optimizer_us)
    with main.span("cpu_op", "aten::copy_"):
        yield from main.copy("HtoD", trouble.host_optimizer_bytes, pinned=True)


def save(main: Thread) -> Blocking:
    """Weights are copied to pageable memory and written to a disk."""
    trouble = main.rank.program.trouble
    if not trouble.save_us:
        return
    with main.span("python", "checkpoint.py(40): save"):
        with main.span("cpu_op", "aten::to"), main.span("cpu_op", "aten::copy_"):
            yield from main.blocking_copy("DtoH", trouble.save_bytes, pinned=False)
        main.work(trouble.save_us)


def compile_again(main: Thread) -> None:
    """A guard fails, and the graph is compiled anew."""
    whole = main.rank.program.trouble.compile_us
    if whole:
        with main.span("cpu_op", "_compile.compile_inner (dynamo_timed)"):
            main.work(0.3 * whole)
            with main.span("cpu_op", "compile_fx_inner (dynamo_timed)"):
                main.work(0.7 * whole)


def offload(main: Thread) -> Blocking:
    """State goes to the host and comes back, and the main stream waits for both."""
    size = main.rank.program.trouble.offload_bytes
    if size:
        yield from _copies(main, ("DtoH", "HtoD"), size)


def side_copy(main: Thread) -> Blocking:
    """A copy behind what was queued, on a stream of its own; the main stream waits for it."""
    size = main.rank.program.trouble.side_copy_bytes
    if size:
        yield from _copies(main, ("HtoD",), size)


def _copies(main: Thread, directions: tuple[str, ...], size: float) -> Blocking:
    main.stream_waits(COPIES, [one for one in [main.last()] if one])
    for direction in directions:
        with main.span("cpu_op", "aten::copy_"):
            main.work(6.0, 0.2)
            copied = yield from main.copy(direction, size, pinned=True, stream=COPIES)
    main.stream_waits(main.rank.compute, [copied])


def side_work(main: Thread) -> Blocking:
    """One block on a side stream, after what was queued; the main stream waits for it."""
    length = main.rank.program.trouble.side_us
    if not length:
        return
    main.stream_waits(SIDE, [one for one in [main.last()] if one])
    with main.span("cpu_op", "aten::sort"):
        main.work(8.0, 0.2)
        work = yield from main.launch("sort", length, stream=SIDE, blocks=1)
    main.stream_waits(main.rank.compute, [work])


def late_module(main: Thread) -> Blocking:
    """A kernel that no step before needed: the driver loads its module in the launch call."""
    load = main.rank.program.trouble.module_us
    if not load:
        return
    with main.span("cpu_op", "aten::topk"):
        main.work(8.0, 0.2)
        yield from main.launch("sort", 40.0, blocks=64, load_us=load)


def stop(main: Thread) -> Blocking:
    """The host waits for the main stream, in the way of its program."""
    by = main.rank.program.stops.by
    if by == "item":
        with main.span("cpu_op", "aten::item"), main.span("cpu_op", "aten::_local_scalar_dense"):
            main.work(5.0, 0.2)
            yield from main.blocking_copy("DtoH", 4, pinned=True)
        return
    main.call("cudaEventRecord", main.jitter(1.2))
    work = main.last()
    assert work is not None
    if by == "poll":
        yield from main.poll(work)
    else:
        yield from main.wait("cudaEventSynchronize", work)
