"""Workloads as the server checks them in code: Job, CronJob, Deployment and their kin.

Rules of `pkg/apis/{batch,apps}/validation` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.launch.check import grammar
from ridgeline.launch.check.grammar import schedule_problem
from ridgeline.launch.check.metadata import (
    Object,
    check_choice,
    check_minimum,
    check_selector,
    entries,
    is_empty,
    section,
    selects,
)
from ridgeline.launch.check.pods import RESTART_POLICIES, check_pod_spec, check_template
from ridgeline.launch.check.verdict import Problems

_INDEXED_LIMIT = 100_000
_UPDATES = {
    "Deployment": ("strategy", ("Recreate", "RollingUpdate")),
    "StatefulSet": ("updateStrategy", ("RollingUpdate", "OnDelete")),
    "DaemonSet": ("updateStrategy", ("RollingUpdate", "OnDelete")),
}
_ACTIONS = ("FailJob", "FailIndex", "Ignore", "Count")


def check_pod(manifest: Object, problems: Problems) -> None:
    """Check a Pod that no controller made."""
    check_pod_spec(section(manifest, "spec"), "spec", problems)
    if section(manifest, "spec").get("ephemeralContainers"):
        problems.forbidden("spec.ephemeralContainers", "cannot be set on create")


def check_pod_template(manifest: Object, problems: Problems) -> None:
    """Check a PodTemplate, the object."""
    check_template(section(manifest, "template"), "template", problems)


def check_job(manifest: Object, problems: Problems) -> None:
    """Check the name, the spec and the labels of a Job."""
    spec = section(manifest, "spec")
    check_job_spec(spec, "spec", problems)
    name = section(manifest, "metadata").get("name") or ""
    completions = spec.get("completions")
    if spec.get("completionMode") == "Indexed" and completions and name:
        host = f"{name}-{completions - 1}"
        if grammar.dns_label(host):
            problems.invalid(
                "metadata.name",
                name,
                f"will not be able to create a pod with the invalid DNS label {host}",
                f"shorten the name to {grammar.LABEL_LENGTH - len(host) + len(name)} characters",
            )
    # The server labels the template with the Job's name.
    if not spec.get("manualSelector") and len(name) > grammar.LABEL_LENGTH:
        problems.invalid(
            "spec.template.labels",
            name,
            "the Job's name becomes a label of its pods: must be no more than 63 bytes",
            "shorten metadata.name to 63 characters",
        )


def check_cron_job(manifest: Object, problems: Problems) -> None:
    """Check the schedule of a CronJob and the Jobs it makes."""
    spec = section(manifest, "spec")
    name = section(manifest, "metadata").get("name") or ""
    if len(name) > 52:
        problems.invalid("metadata.name", name, "must be no more than 52 characters")
    schedule = spec.get("schedule")
    if not schedule:
        problems.required("spec.schedule")
    elif "TZ" in schedule:
        problems.invalid("spec.schedule", schedule, "cannot use TZ in the schedule: use timeZone")
    elif schedule_problem(schedule):
        problems.invalid("spec.schedule", schedule, schedule_problem(schedule))
    check_minimum(spec.get("startingDeadlineSeconds"), 0, "spec.startingDeadlineSeconds", problems)
    check_choice(
        spec.get("concurrencyPolicy"),
        ("Allow", "Forbid", "Replace"),
        "spec.concurrencyPolicy",
        problems,
    )
    for key in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        check_minimum(spec.get(key), 0, f"spec.{key}", problems)
    template = section(section(spec, "jobTemplate"), "spec")
    check_job_spec(template, "spec.jobTemplate.spec", problems)
    if template.get("manualSelector"):
        problems.unsupported(
            "spec.jobTemplate.spec.manualSelector", template["manualSelector"], ("null", "false")
        )


def check_job_spec(spec: Object, path: str, problems: Problems) -> None:
    """What a Job and a CronJob have in common."""
    for key in (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        check_minimum(spec.get(key), 0, f"{path}.{key}", problems)
    mode = spec.get("completionMode")
    check_choice(mode, ("NonIndexed", "Indexed"), f"{path}.completionMode", problems)
    if mode == "Indexed":
        if spec.get("completions") is None:
            problems.required(f"{path}.completions", "must be given when completionMode is Indexed")
        if (spec.get("parallelism") or 0) > _INDEXED_LIMIT:
            problems.invalid(
                f"{path}.parallelism", spec["parallelism"], f"at most {_INDEXED_LIMIT} when Indexed"
            )
    elif spec.get("backoffLimitPerIndex") is not None:
        problems.invalid(
            f"{path}.backoffLimitPerIndex",
            spec["backoffLimitPerIndex"],
            "requires indexed completion mode",
        )
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        problems.invalid(
            f"{path}.backoffLimitPerIndex", None, "must be specified when maxFailedIndexes is"
        )
    check_choice(
        spec.get("podReplacementPolicy"),
        ("TerminatingOrFailed", "Failed"),
        f"{path}.podReplacementPolicy",
        problems,
    )
    selector = spec.get("selector")
    if selector is not None and not spec.get("manualSelector"):
        problems.invalid(f"{path}.selector", selector, "`selector` not auto-generated")
    template = section(spec, "template")
    check_template(template, f"{path}.template", problems)
    _check_job_restart(spec, template, path, problems)


def _check_job_restart(spec: Object, template: Object, path: str, problems: Problems) -> None:
    policy = section(template, "spec").get("restartPolicy") or "Always"
    field = f"{path}.template.spec.restartPolicy"
    if policy == "Always":
        problems.add(
            field,
            "Required",
            "a Job's pods must have OnFailure or Never; without a value the server fills in Always",
            "set restartPolicy: Never (or OnFailure)",
        )
    elif policy not in RESTART_POLICIES:
        problems.unsupported(field, policy, ("OnFailure", "Never"))
    failure = spec.get("podFailurePolicy")
    if failure is None:
        return
    if policy != "Never":
        problems.invalid(field, policy, "only 'Never' is supported when podFailurePolicy is set")
    for index, rule in enumerate(entries(failure, "rules")):
        at = f"{path}.podFailurePolicy.rules[{index}]"
        action = rule.get("action")
        if not action:
            problems.required(f"{at}.action")
        check_choice(action, _ACTIONS, f"{at}.action", problems)
        if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            problems.invalid(f"{at}.action", action, "requires the backoffLimitPerIndex to be set")
        codes, conditions = rule.get("onExitCodes"), entries(rule, "onPodConditions")
        if (codes is None) == (not conditions):
            problems.invalid(
                at, "", "specifying one of onExitCodes and onPodConditions is required"
            )
        if codes is not None:
            check_choice(
                codes.get("operator"), ("In", "NotIn"), f"{at}.onExitCodes.operator", problems
            )
            if not codes.get("values"):
                problems.invalid(f"{at}.onExitCodes.values", [], "at least one value is required")


def check_replicated(kind: str) -> Callable[[Object, Problems], None]:
    """Checks of Deployment, StatefulSet or DaemonSet: pods that are to run for ever."""

    def check(manifest: Object, problems: Problems) -> None:
        spec = section(manifest, "spec")
        for key in ("replicas", "minReadySeconds", "revisionHistoryLimit"):
            check_minimum(spec.get(key), 0, f"spec.{key}", problems)
        selector, template = spec.get("selector"), section(spec, "template")
        labels = section(section(template, "metadata"), "labels")
        if selector is None:
            problems.required("spec.selector")
        else:
            check_selector(selector, "spec.selector", problems)
            if is_empty(selector):
                problems.invalid(
                    "spec.selector", {}, f"empty selector is invalid for {kind.lower()}"
                )
            elif not selects(selector, labels):
                problems.invalid(
                    "spec.template.metadata.labels",
                    dict(labels),
                    "`selector` does not match template `labels`",
                    "give the template the labels that spec.selector asks for",
                )
        check_template(template, "spec.template", problems)
        pod = section(template, "spec")
        if (pod.get("restartPolicy") or "Always") != "Always":
            problems.unsupported(
                "spec.template.spec.restartPolicy", pod["restartPolicy"], ("Always",)
            )
        if pod.get("activeDeadlineSeconds") is not None:
            problems.forbidden("spec.template.spec.activeDeadlineSeconds", f"not for a {kind}")
        _check_update(spec, kind, problems)
        if kind == "StatefulSet":
            _check_stateful(spec, problems)

    return check


def _check_update(spec: Object, kind: str, problems: Problems) -> None:
    field, allowed = _UPDATES[kind]
    strategy = section(spec, field)
    check_choice(strategy.get("type"), allowed, f"spec.{field}.type", problems)
    rolling = strategy.get("rollingUpdate")
    if rolling is not None and strategy.get("type") == allowed[0 if kind == "Deployment" else 1]:
        problems.forbidden(
            f"spec.{field}.rollingUpdate", f"may not be specified with {strategy['type']}"
        )
    for key in ("maxUnavailable", "maxSurge"):
        value = (rolling or {}).get(key)
        if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            problems.invalid(f"spec.{field}.rollingUpdate.{key}", value, "must be e.g. 1 or '25%'")
        check_minimum(value, 0, f"spec.{field}.rollingUpdate.{key}", problems)
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if kind == "Deployment" and deadline is not None and deadline <= ready:
        problems.invalid(
            "spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"
        )


def _check_stateful(spec: Object, problems: Problems) -> None:
    check_choice(
        spec.get("podManagementPolicy"),
        ("OrderedReady", "Parallel"),
        "spec.podManagementPolicy",
        problems,
    )
    retention = section(spec, "persistentVolumeClaimRetentionPolicy")
    for key, value in retention.items():
        check_choice(
            value,
            ("Retain", "Delete"),
            f"spec.persistentVolumeClaimRetentionPolicy.{key}",
            problems,
        )
