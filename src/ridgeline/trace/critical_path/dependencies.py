"""What had to wait for what: a trace as a graph of moments, in columns.

A node is a moment: the start or the end of a GPU event, or a point on a host thread (a launch, the
begin and end of a call that waits, the two ends of a pause). An edge says that its target cannot be
earlier than its source plus a weight. Three edges at most lead into a node:

    GPU start   the launch that brought it · the event before it on its stream · the event of
                another stream that it waits for (cuda_sync records where there are any; else the
                one that ended last while the stream stood still with work in its queue)
    GPU end     its start
    host point  the point before it on its thread · for a call that waits, the GPU event it waits
                for; for a launch into a full queue, the start that made room · after a pause, the
                other thread that worked meanwhile (autograd's, say)

One edge of each node is binding: source plus weight is exactly the node's time, because the weight
of the edge whose source was ready last is set to what is left. Hence walking back along binding
edges from the last node ends at the origin, and the path is as long as the window. The other edges
keep the smallest weight that the trace shows for their sort, so that `path.py` can move
nodes earlier and see which edge binds then. (Longest path over launch, stream and sync edges:
HolisticTraceAnalysis' critical path, and Daydream, Zhu et al., USENIX ATC 2020, section 4, for the
what-if.)
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Kind, Mask, Trace
from ridgeline.trace.critical_path.clocks import CLOCK_US, earlier_in_order
from ridgeline.trace.critical_path.moments import (
    FREE_EDGE,
    HOST_EDGE,
    LAUNCH_EDGE,
    QUEUE_EDGE,
    RUN_EDGE,
    SLOTS,
    STREAM_EDGE,
    SYNC_EDGE,
    WAIT_EDGE,
    Moments,
    tightened,
)
from ridgeline.trace.held_calls import (
    LONG_LAUNCH_US,
    launches_into_full_queues,
    polls,
    staged_copies,
)
from ridgeline.trace.host_calls import WAIT_CALLS, launch_rows, launch_start_us, names_matching
from ridgeline.trace.sorting import among, distinct, on_ticks, quantile
from ridgeline.trace.start_up_calls import allocator_recurs
from ridgeline.trace.waits import (
    NONE,
    before_on_stream,
    grain_us,
    pauses,
    stream_of_call,
    waits_for,
)

_FREEING = ("cudaFree", "hipFree", "cuMemFree", "cuMemFree_v2", "urUSMFree", "zeMemFree")
"""They return when the GPU has done all that was launched, where memory is freed repeatedly."""


def dependencies(trace: Trace) -> Moments:
    """The graph of one trace; empty when nothing ran on a GPU."""
    return _Building(trace).moments()


class _Building:
    """Nodes first (all times are known), then edges, then one order for all."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.gpu, self.host = trace.gpu, trace.host
        self.before = before_on_stream(trace)
        self.starts = on_ticks(trace.gpu.start_us)
        self.ends = self._ends()
        self.launch = launch_rows(trace)
        self.lag, self.behind = self._distances()
        self.other = waits_for(trace, self.before, np.minimum(self.lag, self.behind))
        self._end_before_waiters()
        self.waits = self._waiting_calls()
        self._wait_times()
        self.pauses = pauses(trace, self._threads())
        self._place_nodes()

    def moments(self) -> Moments:
        size = len(self.time)
        self.source = np.full((size, SLOTS), NONE, np.int32)
        self.weight = np.zeros((size, SLOTS))
        self.edge = np.zeros((size, SLOTS), np.int8)
        self._host_edges()
        self._sync_edges()
        self._gpu_edges()
        return self._ordered()

    def _ends(self) -> Floats:
        """When each GPU event ended, which is not after the next one of its stream began.

        Rounding alone makes ends later than that, and an edge that leads backward is none. A copy
        that its call feeds has ended when the call has.
        """
        ends = on_ticks(self.gpu.end_us)
        fed = np.flatnonzero(staged_copies(self.trace))
        returned = self.host.ends_of(launch_rows(self.trace)[fed])  # rounded up it would be later
        ends[fed] = np.maximum(np.minimum(ends[fed], returned), self.starts[fed])
        follows = np.flatnonzero(self.before != NONE)
        earlier = self.before[follows]
        np.minimum.at(ends, earlier, np.maximum(self.starts[follows], self.starts[earlier]))
        return ends

    def _distances(self) -> tuple[Floats, Floats]:
        """How long before its start each event was launched, and its stream was free."""
        known, before = self.launch != ABSENT, self.before
        lag = np.where(known, self.starts - launch_start_us(self.trace), np.inf)
        return lag, np.where(before != NONE, self.starts - self.ends[before], np.inf)

    def _end_before_waiters(self) -> None:
        """What another stream waits for has ended when that goes on, whatever rounding says."""
        waiters = np.flatnonzero(self.other != NONE)
        waited = self.other[waiters]
        np.minimum.at(self.ends, waited, np.maximum(self.starts[waiters], self.starts[waited]))

    # -- nodes ----------------------------------------------------------------------------------

    def _threads(self) -> Ints:
        """Threads that start GPU work or wait for it: the others' time does not count."""
        rows = np.concatenate((self.launch[self.launch != ABSENT], self.waits))
        return distinct(self.host.thread[rows]).astype(np.int64)

    def _waiting_calls(self) -> Ints:
        """Host rows of calls that return only when GPU work is done."""
        host = self.host
        waiting = names_matching(self.trace, WAIT_CALLS)
        by_name = np.flatnonzero(host.is_call & (waiting | self._freeing())[host.name])
        known = np.flatnonzero((self.launch != ABSENT) & (self.gpu.kind != Kind.KERNEL))
        ends = self.gpu.ends_of(known) - grain_us(self.trace)
        blocked = (host.ends_of(self.launch[known]) >= ends) | staged_copies(self.trace)[known]
        return distinct(np.concatenate((by_name, self.launch[known[blocked]]))).astype(np.int64)

    def _wait_times(self) -> None:
        """When each wait begins and returns, and since when what it waits for can have ended.

        A row of queries is one wait, under the row of its first one.
        """
        host, asked = self.host, polls(self.trace)
        self.held_up, made_room = launches_into_full_queues(self.trace)
        calls = np.concatenate((self.waits, self.launch[self.held_up]))
        rows = np.concatenate((calls, asked.first))
        begins = np.concatenate((host.start_us[calls], asked.begin_us))
        ends = np.concatenate((host.ends_of(calls), asked.end_us))
        since = np.concatenate((host.start_us[calls], asked.since_us))
        room = np.full(len(rows), NONE, np.int64)
        room[len(self.waits) : len(calls)] = made_room
        order = np.argsort(rows, kind="stable")
        self.waits, self.begins, self.returns = rows[order], begins[order], ends[order]
        self.since, self.room = since[order], room[order]

    def _freeing(self) -> Mask:
        """Names of calls that free memory of the GPU, of a trace that does so again and again."""
        names = self.trace.names
        if not allocator_recurs(self.trace):
            return np.zeros(len(names), bool)
        return np.array([name in _FREEING for name in names], bool)

    def _place_nodes(self) -> None:
        host, count = self.host, len(self.gpu)
        launches = distinct(self.launch[self.launch != ABSENT])
        plain = launches[~among(launches, self.waits)]
        pauses = self.pauses
        time = [host.start_us[plain], self.begins, self._returns(plain),
                pauses.begin_us, pauses.end_us, pauses.other_us]  # fmt: skip
        thread = [host.thread[plain], host.thread[self.waits], host.thread[self.waits],
                  pauses.thread, pauses.thread, pauses.other]  # fmt: skip
        sizes = [len(part) for part in time]
        self.offsets = 2 * count + np.concatenate(([0], np.cumsum(sizes)))
        self.time = np.concatenate([self.starts, self.ends, *time])
        self.thread = np.concatenate([np.full(2 * count, NONE), *thread]).astype(np.int64)
        # At one moment: the return of a call and the thread that was waited for, then the end of
        # that pause, then what begins, then the return of an empty call.
        self.turn = np.full(len(self.time), 2, np.int64)
        returns = self.offsets[2] + np.arange(len(self.waits))
        self.turn[returns] = np.where(self.returns > self.begins, 0, 3)
        self.turn[self.offsets[5] : self.offsets[6]] = 0
        self.turn[self.offsets[4] : self.offsets[5]] = 1
        self.node_of_call = np.full(len(host), NONE, np.int32)
        self.node_of_call[plain] = self.offsets[0] + np.arange(len(plain))
        self.node_of_call[self.waits] = self.offsets[1] + np.arange(len(self.waits))
        held = np.flatnonzero(self.room != NONE)  # it has launched when it returns
        self.node_of_call[self.waits[held]] = self.offsets[2] + held
        self._put_on_the_gpus_clock()

    def _put_on_the_gpus_clock(self) -> None:
        """Let no event start before its launch: where stamps say so, the GPU's clock is behind.

        The launch is as early as what it launched, and what its thread did before is no later; but
        a call that waits returns no earlier than what it waited for.
        """
        behind = np.flatnonzero((self.lag < 0) & (self.lag > -CLOCK_US))
        launches = self.launch[behind]
        behind = behind[~among(launches, self.launch[self.held_up])]
        self.skewed = bool(len(behind))
        if not self.skewed:
            return
        latest, floor = np.full(len(self.time), np.inf), np.full(len(self.time), -np.inf)
        np.minimum.at(latest, self.node_of_call[self.launch[behind]], self.starts[behind])
        covered, returns = self._covered(), self.offsets[2] + np.arange(len(self.waits))
        known = np.flatnonzero(covered != NONE)
        floor[returns[known]] = self.ends[covered[known]]
        nodes = self._along_threads()
        moved = earlier_in_order(self.time[nodes], self.thread[nodes], latest[nodes], floor[nodes])
        self.time[nodes] = moved
        self.turn[nodes] = np.arange(len(nodes))  # what is at one moment now stays in its order

    def _returns(self, plain: Ints) -> Floats:
        """When each waiting call returns: before the next call of its thread begins."""
        host, rounding = self.host, grain_us(self.trace)
        found = self.returns.copy()
        for thread in distinct(host.thread[self.waits]).tolist():
            here = host.thread[self.waits] == thread
            others = np.concatenate((plain[host.thread[plain] == thread], self.waits[here]))
            begins = np.sort(host.start_us[others])
            next_one = np.searchsorted(begins, self.begins[here], side="right")
            after = np.append(begins, np.inf)[next_one]
            found[here] = np.where(
                (found[here] > after) & (found[here] - after <= rounding), after, found[here]
            )
        return found

    # -- edges ----------------------------------------------------------------------------------

    def _set(self, nodes: Ints, slot: int, source: Ints, weight: Floats, edge: int) -> None:
        self.source[nodes, slot] = source
        self.weight[nodes, slot] = weight
        self.edge[nodes, slot] = edge

    def _host_edges(self) -> None:
        """Point to point along each thread; a pause in which another thread worked is its end's."""
        order = self._along_threads()
        before, after = order[:-1], order[1:]
        same = self.thread[before] == self.thread[after]
        before, after = before[same], after[same]
        self._set(after, 0, before, self.time[after] - self.time[before], HOST_EDGE)
        many = len(self.pauses.thread)
        ends = self.offsets[4] + np.arange(many)
        others = self.offsets[5] + np.arange(many)
        self.weight[ends, 0] = 0.0
        self._set(ends, 1, others, self.time[ends] - self.time[others], HOST_EDGE)

    def _along_threads(self) -> Ints:
        """The points of the host, thread by thread, in order."""
        nodes = np.arange(self.offsets[0], len(self.time))
        return nodes[np.lexsort((nodes, self.turn[nodes], self.time[nodes], self.thread[nodes]))]

    def _sync_edges(self) -> None:
        """A call that waits returns after the last GPU event that it covers."""
        count = len(self.waits)
        if not count or not len(self.gpu):
            return
        nodes = self.offsets[2] + np.arange(count)
        begins = self.offsets[1] + np.arange(count)
        covered, held = self._covered(), self.room != NONE
        has = (covered != NONE) | held
        source = np.where(held, self.room, len(self.gpu) + covered)
        own = self.time[nodes] - self.time[begins]
        ready = np.where(has, self.time[source], -np.inf)
        bound = has & (ready > self.time[begins])
        late = self.time[nodes] - ready
        frees = self._freeing()[self.host.name[self.waits]]
        sorts = ((SYNC_EDGE, ~frees & ~held), (FREE_EDGE, frees), (QUEUE_EDGE, held))
        for edge, these in sorts:
            if not these.any():
                continue
            # A call that finds nothing to wait for takes no longer than another needs to return.
            returning = float(late[bound & these].min(initial=np.inf))
            least = max(0.0, min(float(own[these].min()), returning))
            self.weight[nodes[these], 0] = np.where(bound, np.minimum(own, least), own)[these]
            self.edge[nodes[these], 0] = edge
            picked = np.flatnonzero(bound & these)
            self._set(nodes[picked], 1, source[picked], late[picked], edge)
        # What had ended before memory was freed would be waited for if it came later.
        idle = np.flatnonzero(frees & has & ~bound)
        self._set(nodes[idle], 1, source[idle], np.zeros(len(idle)), FREE_EDGE)

    def _covered(self) -> Ints:
        """For each waiting call the GPU event that it waited for."""
        gpu, host = self.gpu, self.host
        found = np.full(len(self.waits), NONE, np.int64)
        streams = stream_of_call(self.trace)
        by_end = np.argsort(gpu.end_us, kind="stable")
        ends = gpu.ends_of(by_end)
        # What was launched before the trace began was launched before any call in it.
        started = np.where(self.launch != ABSENT, launch_start_us(self.trace), -np.inf)
        copies = dict(zip(self.launch.tolist(), range(len(gpu)), strict=True))
        last = np.searchsorted(ends, self.returns, side="right") - 1
        frees = self._freeing()[host.name[self.waits]]
        for index, row in enumerate(self.waits.tolist()):
            if self.room[index] != NONE:
                continue
            own = copies.get(row)
            if own is not None and gpu.kind[own] != Kind.KERNEL:
                found[index] = own
                continue
            stream = streams.get(int(host.correlation[row]), ABSENT)
            begin = self.begins[index]
            since = -np.inf if frees[index] else self.since[index]
            for place in range(int(last[index]), max(-1, int(last[index]) - 64), -1):
                event = int(by_end[place])
                if ends[place] < since:
                    break
                if started[event] <= begin and stream in (ABSENT, gpu.stream[event]):
                    found[index] = event
                    break
        return found

    def _gpu_edges(self) -> None:
        gpu, count = self.gpu, len(self.gpu)
        if not count:
            return
        starts = np.arange(count)
        self._set(count + starts, 0, starts, self.ends - self.starts, RUN_EDGE)
        before = self.before
        known = self.launch != ABSENT
        lag, behind, waits = self.lag.copy(), self.behind, self.other
        held = self.held_up
        if self.skewed:
            calls = self.node_of_call[self.launch[known]]
            lag[known] = self.starts[known] - self.time[calls]
        lag[held] = self.starts[held] - self.host.ends_of(self.launch[held])
        idle = known & (lag > 0) & (lag < behind)
        usual = quantile(lag[idle], 0.05) if idle.any() else 0.0
        least = np.minimum(lag, min(usual, LONG_LAUNCH_US))
        # A long launch (a module to load) has launched nothing until it returns.
        calling = self.host.duration_us[np.maximum(self.launch, 0)] if len(self.host) else lag
        long = known & (gpu.kind == Kind.KERNEL) & (calling > LONG_LAUNCH_US)
        long[held] = False
        least[long] = np.minimum(lag, calling)[long]
        other = np.where(waits != NONE, self.starts - self.ends[waits], np.inf)
        # Ready times as distances back from the start: the smallest distance binds.
        by_launch = known & (lag >= 0)
        by_stream = (before != NONE) & (behind >= 0)
        by_wait = (waits != NONE) & (other >= 0)
        distance = np.stack((
            np.where(by_launch, np.maximum(lag - least, 0.0), np.inf),
            np.where(by_stream, behind, np.inf),
            np.where(by_wait, other, np.inf),
        ))  # fmt: skip
        binding = np.argmin(distance, axis=0)
        calls = np.full(count, NONE, np.int64)
        calls[known] = self.node_of_call[self.launch[known]]
        sources = (calls, count + before, count + waits)
        whole = (lag, behind, other)
        small = (least, np.zeros(count), np.zeros(count))
        for slot, (usable, edge) in enumerate(
            zip((by_launch, by_stream, by_wait), (LAUNCH_EDGE, STREAM_EDGE, WAIT_EDGE), strict=True)
        ):
            rows = np.flatnonzero(usable)
            weight = np.where(binding == slot, whole[slot], small[slot])[rows]
            self._set(rows, slot, sources[slot][rows], weight, edge)

    # -- order ----------------------------------------------------------------------------------

    def _ordered(self) -> Moments:
        """The nodes in order of time.

        Ties: ends, host points, then starts (an empty event's end after its own
        start). A node without edges hangs on the origin.
        """
        count, size = len(self.gpu), len(self.time)
        rank = np.full(size, 1, np.int64)
        row = np.zeros(size, np.int64)
        rank[:count] = 2
        row[:count] = 2 * np.arange(count)
        empty = self.ends <= self.starts
        rank[count : 2 * count] = np.where(empty, 2, 0)
        row[count : 2 * count] = 2 * np.arange(count) + 1
        row[2 * count :] = self.turn[2 * count :] * size + np.arange(size - 2 * count)
        order = np.lexsort((row, rank, self.time))
        place = np.empty(size, np.int32)
        place[order] = np.arange(size)
        source = self.source[order]
        source = np.where(source >= 0, place[source], NONE)
        weight, edge = self.weight[order], self.edge[order]
        del self.source, self.weight, self.edge, place  # as large as what is made of them
        gpu_event = np.where(order < 2 * count, order % max(1, count), NONE)
        return tightened(
            Moments(
                time_us=self.time[order],
                gpu_event=gpu_event,
                is_end=(order >= count) & (order < 2 * count),
                thread=self.thread[order],
                source=source,
                weight_us=weight,
                edge=edge,
            )
        )
