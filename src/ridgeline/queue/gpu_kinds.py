"""Kinds of GPU that jobs ask for, in the words in which a cluster names its own.

A job's `gpu_type` is a name, or several with `|` between them of which any will do; names with `!`
before them are those that will not. Labels,
generic resources and people call one device by many names (`NVIDIA-H100-80GB-HBM3`, `h100`,
`nvidia-tesla-t4`), so a name is first looked for among the cluster's own, then among the devices
that we know, and then by its words: those of one name are all in the other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device
from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.wants import PLAIN, any_of, kinds_in

_MAKERS = frozenset({"nvidia", "amd", "intel", "tesla", "geforce", "instinct", "gpu"})
"""Words that tell no device from another."""


def matched_kinds(jobs: Jobs, cluster: QueuedCluster) -> Jobs:
    """The jobs with kinds of GPU as the cluster calls them; those that every node has are none.

    A kind that no node has stays as it is, and its job fits nowhere.
    """
    asked = {one.gpu_type for one in jobs.wants if one.gpu_type}
    if not asked:
        return jobs
    here = {group.gpu_type for group in cluster.nodes}
    return _renamed(jobs, {text: _in_words_of(text, here) for text in asked})


def without_kinds(jobs: Jobs) -> Jobs:
    """The jobs as if any GPU would do for them."""
    return _renamed(jobs, {})


def told_kinds(jobs: Jobs, cluster: QueuedCluster | None) -> tuple[Jobs, tuple[str, ...]]:
    """The jobs of a trace that names kinds of GPU, and a note where no node has any.

    What Slurm and Kubernetes say of kinds is of no use to a cluster whose nodes have none.
    """
    asked = any(one.gpu_type for one in set(jobs.wants))
    if not asked or (cluster is not None and any(one.gpu_type for one in cluster.nodes)):
        return jobs, ()
    note = "Kinds of GPU that jobs ask for are not heeded, since no node of the cluster has one."
    return without_kinds(jobs), (note,)


def same_kinds(asked: str, here: Iterable[str]) -> set[str]:
    """The kinds among those of a cluster that one name means.

    >>> sorted(same_kinds("NVIDIA-H100-80GB-HBM3", {"h100", "a100"}))
    ['h100']
    >>> sorted(same_kinds("v100", {"Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-T4"}))
    ['Tesla-V100-SXM2-16GB', 'Tesla-V100-SXM2-32GB']
    """
    known = {one for one in here if one}
    for same in (_equal, _one_of_them, _more_exact):
        found = {one for one in known if same(asked, one)}
        if found:
            return found
    return set()


def is_kind(name: str) -> bool:
    """Whether a word names a GPU that we know.

    >>> is_kind("a100"), is_kind("infiniband")
    (True, False)
    """
    return _device_of(name) is not None


def _renamed(jobs: Jobs, kinds: Mapping[str, str]) -> Jobs:
    kept = {one: replace(one, gpu_type=kinds.get(one.gpu_type, "")) for one in set(jobs.wants)}
    if all(one == PLAIN for one in kept.values()):
        return replace(jobs, wants=())
    return replace(jobs, wants=tuple(kept[one] for one in jobs.wants))


def _in_words_of(text: str, here: set[str]) -> str:
    """Any of the kinds of a cluster that a text means; itself where it means none of them."""
    names = kinds_in(text)
    found = set().union(*(same_kinds(name.removeprefix("!"), here) for name in names))
    if any(name.startswith("!") for name in names):
        found = here - found
    if not found - {""}:
        return text
    return "" if found == here else any_of(found)


def _equal(asked: str, here: str) -> bool:
    return asked.casefold() == here.casefold()


def _one_of_them(asked: str, here: str) -> bool:
    """Whether both are one device, or the name leaves open what the cluster's tells."""
    found, words = _device_of(asked), _words(asked)
    if found is not None and found == _device_of(here):
        return True
    return bool(words) and words <= _words(here)


def _more_exact(asked: str, here: str) -> bool:
    """Whether the name tells what the cluster's leaves open."""
    return bool(_words(here)) and _words(here) <= _words(asked)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.casefold())) - _MAKERS


@functools.cache
def _device_of(name: str) -> str | None:
    try:
        return device(name).name
    except InputError:
        return None
