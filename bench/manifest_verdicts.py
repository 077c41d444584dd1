"""How often `launch --check` says what a real kube-apiserver 1.36.2 said.

Reads verdicts as JSON lines (manifest, mutation, verdict), compares acceptance and the field that
was named, and prints the shares by family of kinds and by planted defect. No cluster is needed.

    python bench/manifest_verdicts.py ../shared/data/k8s/manifest_verdicts.jsonl.gz [--failures]
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.launch.check import Document, ManifestVerdict, check_manifests
from ridgeline.launch.check.catalogue import find_kind


@dataclass
class Score:
    """Counts for one family or one defect."""

    objects: int = 0
    agreed: int = 0
    rejected: int = 0
    """Rejections by both in which the server names a field."""
    named: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def agreement(self) -> float:
        """Share of objects that both accept or both reject."""
        return self.agreed / self.objects if self.objects else 1.0

    @property
    def named_share(self) -> float:
        """Share of rejections in which we name a field that the server names."""
        return self.named / self.rejected if self.rejected else 1.0


def read_rows(path: Path) -> list[dict]:
    """All lines of a file of verdicts."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def server_fields(verdict: dict) -> set[str]:
    """The fields that the server named: as causes, or inside the message of a failed decoding."""
    causes = {normal(cause["field"]) for cause in verdict.get("causes") or ()}
    message = verdict.get("message") or ""
    unknown = {normal(name) for name in re.findall(r'unknown field "([^"]+)"', message)}
    # Go names the struct, then the path without indices, with embedded structs in it.
    go_path = re.search(r"Go struct field \w+\.(\S+) of type", message)
    decoded = {"~" + go_path.group(1)} if go_path else set()
    return causes | unknown | decoded


def normal(name: str) -> str:
    """One notation for keys of maps."""
    return re.sub(r"\[([^\]\d][^\]]*)\]", r".\1", name)


def without_indices(name: str) -> str:
    """As Go's decoder writes a path: no indices, no keys of maps, no embedded structs."""
    bare = re.sub(r"\[[^\]]*\]", "", name)
    return ".".join(part for part in bare.split(".") if not part[:1].isupper())


def names_same_field(verdict: ManifestVerdict, expected: set[str]) -> bool:
    """Whether a field that we name is among the server's."""
    ours = [problem.field for problem in verdict.problems if problem.rule == "server"]
    exact = any(normal(name) in expected for name in ours)
    decoded = {without_indices(name[1:]) for name in expected if name.startswith("~")}
    return exact or any(without_indices(name) in decoded for name in ours)


def score(rows: list[dict]) -> dict[str, Score]:
    """Scores by `core`, `custom`, and by planted defect; unknown kinds count as such."""
    verdicts = check_manifests([Document(row["source"], row["manifest"]) for row in rows])
    scores: dict[str, Score] = defaultdict(Score)
    for row, ours in zip(rows, verdicts, strict=True):
        if not ours.known:
            scores["unknown kind"].objects += 1
            scores["unknown kind"].agreed += 1
            continue
        manifest, theirs = row["manifest"], row["verdict"]
        kind = find_kind(manifest.get("apiVersion", ""), manifest.get("kind", ""))
        family = "custom" if kind is not None and kind.custom else "core"
        expected = server_fields(theirs)
        agreed = ours.accepted == theirs["accepted"]
        both = agreed and not ours.accepted and expected
        named = bool(both) and names_same_field(ours, expected)
        for key in (family, f"{family}: {row['mutation']}"):
            scores[key].objects += 1
            scores[key].agreed += agreed
            scores[key].rejected += bool(both)
            scores[key].named += named
            if not agreed or (both and not named):
                fields = [(p.field, p.reason) for p in ours.problems]
                scores[key].failures.append(
                    f"{row['mutation']} {ours.kind} {row['source']}\n    server: "
                    f"{theirs.get('message', 'accepted')[:300]}\n    ours:   {fields}",
                )
    return scores


def main(arguments: list[str]) -> int:
    """Print the table."""
    rows = read_rows(Path(arguments[0]))
    started = time.perf_counter()
    scores = score(rows)
    seconds = time.perf_counter() - started
    print(f"{'':34} {'objects':>7} {'agree':>7} {'rejected':>8} {'field':>7}")
    for key in sorted(scores):
        s = scores[key]
        print(
            f"{key:34} {s.objects:7} {s.agreement:7.1%} {s.rejected:8} {s.named_share:7.1%}",
        )
    print(f"{len(rows)} manifests in {seconds:.2f} s")
    if "--failures" in arguments:
        for key in ("core", "custom"):
            print(*scores[key].failures, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
