"""What is written down: profiles, findings, ledgers, and their JSON.

Every other room hands these on; `compare` and the report read them back from disk. They hold
plain values only: no torch, no behaviour beyond arithmetic on their own fields, no printing.
Start reading at `profile.py` and `script_facts.py`, then `finding.py`, then `ledger.py`; `store.py`
reads and writes.
"""

from ridgeline.records.finding import Finding, Verdict
from ridgeline.records.ledger import Ledger, LedgerRow, LossCheck, RunBill
from ridgeline.records.measurement import Distribution, Environment
from ridgeline.records.profile import (
    GraphBreak,
    HotLine,
    MemoryPoint,
    MemorySplit,
    Operator,
    SideEffects,
    StepProfile,
    SyncPoint,
    TailFacts,
    UnusedGraph,
)
from ridgeline.records.script_facts import (
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    Settings,
    Site,
)
from ridgeline.records.store import read_record, write_record

__all__ = [
    "Distribution",
    "Environment",
    "Finding",
    "GraphBreak",
    "HotLine",
    "Ledger",
    "LedgerRow",
    "LoaderFacts",
    "LossCheck",
    "MemoryPoint",
    "MemorySplit",
    "ModelFacts",
    "Operator",
    "OptimizerFacts",
    "RunBill",
    "Settings",
    "SideEffects",
    "Site",
    "StepProfile",
    "SyncPoint",
    "TailFacts",
    "UnusedGraph",
    "Verdict",
    "read_record",
    "write_record",
]
