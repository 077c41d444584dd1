"""What is wrong with a run: symptom → cause → evidence → cure.

It reads what `measure/` recorded and changes nothing.

    reading.py     a profile with the questions that rules ask of it
    rules/         one file per rule: a pure function from a reading to its findings
    ranking.py     what is worth a person's time, and in which order
    verdict.py     what bounds the step, top down
    diagnosis.py   all of it for one script: `diagnose(profiles, ceilings)`
    doctor.py      measure and diagnose: `doctor(command)`
    rule_files.py  finds the files of a folder of rules, here and for traces

and, for profiler traces instead of measurements,

    trace_facts.py    what rules need of one GPU of one rank
    trace_reading.py  the facts of all ranks with the questions that rules ask
    trace_rules/      one file per rule
    trace_verdict.py  all of it, the cause that bounds the run first: `trace_verdict(traces)`

What may not enter: how a cure is applied (that is `techniques/`; a finding only names one), the
report, and torch. A rule argues from evidence alone: no script, model or machine is known by
name, and what was not measured is not claimed. Start reading at `rules/__init__.py`, then at a
short rule such as `rules/interruptions.py`.
"""

from ridgeline.diagnose.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
