"""What-if for real-time pipelines: the edges, joins and deadlines that run, on a simulated clock.

`frames/` is the very logic that executors drive; here an event loop drives it (`event_loop.py`),
with times of calls that were measured (`run_samples.py`) or typed (`stage_table.py`). `changes.py`
reads what-ifs, `target.py` says what a deadline takes, `answer.py` is the whole answer. No torch,
no waiting, no printing. Start reading at `timing.py`.
"""
