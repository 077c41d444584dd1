"""Workloads as the server checks them in code: Job, CronJob, Deployment and their kin.

Rules of `pkg/apis/{batch,apps}/validation` of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.launch.check import grammar
from ridgeline.launch.check.fields import Fields
from ridgeline.launch.check.grammar import schedule_problem
from ridgeline.launch.check.metadata import check_selector, is_empty, selects
from ridgeline.launch.check.pods import RESTART_POLICIES, check_pod_spec, check_template

_INDEXED_LIMIT = 100_000
_UPDATES = {
    "Deployment": ("strategy", ("Recreate", "RollingUpdate")),
    "StatefulSet": ("updateStrategy", ("RollingUpdate", "OnDelete")),
    "DaemonSet": ("updateStrategy", ("RollingUpdate", "OnDelete")),
}
_ACTIONS = ("FailJob", "FailIndex", "Ignore", "Count")


def check_pod(manifest: Fields) -> None:
    """Check a Pod that no controller made."""
    spec = manifest.section("spec")
    check_pod_spec(spec)
    if spec.get("ephemeralContainers"):
        spec.forbidden("ephemeralContainers", "cannot be set on create")


def check_pod_template(manifest: Fields) -> None:
    """Check a PodTemplate, the object."""
    check_template(manifest.section("template"))


def check_job(manifest: Fields) -> None:
    """Check the name, the spec and the labels of a Job."""
    spec, metadata = manifest.section("spec"), manifest.section("metadata")
    check_job_spec(spec)
    name, completions = metadata.get("name") or "", spec.get("completions")
    if spec.get("completionMode") == "Indexed" and completions and name:
        host = f"{name}-{completions - 1}"
        if grammar.dns_label(host):
            metadata.invalid(
                "name",
                f"will not be able to create a pod with the invalid DNS label {host}",
                f"shorten the name to {grammar.LABEL_LENGTH - len(host) + len(name)} characters",
            )
    # The server labels the template with the Job's name.
    if not spec.get("manualSelector") and len(name) > grammar.LABEL_LENGTH:
        spec.invalid(
            "template.labels",
            "the Job's name becomes a label of its pods: must be no more than 63 bytes",
            "shorten metadata.name to 63 characters",
            value=name,
        )


def check_cron_job(manifest: Fields) -> None:
    """Check the schedule of a CronJob and the Jobs it makes."""
    spec, metadata = manifest.section("spec"), manifest.section("metadata")
    if len(metadata.get("name") or "") > 52:
        metadata.invalid("name", "must be no more than 52 characters")
    schedule = spec.get("schedule")
    if not schedule:
        spec.required("schedule")
    elif "TZ" in schedule:
        spec.invalid("schedule", "cannot use TZ in the schedule: use timeZone")
    else:
        spec.invalid("schedule", schedule_problem(schedule))
    spec.minimum(0, "startingDeadlineSeconds")
    spec.choice("concurrencyPolicy", ("Allow", "Forbid", "Replace"))
    spec.minimum(0, "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    job = spec.section("jobTemplate", "spec")
    check_job_spec(job)
    if job.get("manualSelector"):
        job.unsupported("manualSelector", ("null", "false"))


def check_job_spec(spec: Fields) -> None:
    """What a Job and a CronJob have in common."""
    spec.minimum(
        0, "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit",
        "ttlSecondsAfterFinished", "backoffLimitPerIndex", "maxFailedIndexes",
    )  # fmt: skip
    mode, per_index = spec.get("completionMode"), spec.get("backoffLimitPerIndex")
    spec.choice("completionMode", ("NonIndexed", "Indexed"))
    if mode == "Indexed":
        if spec.get("completions") is None:
            spec.required("completions", "must be given when completionMode is Indexed")
        if (spec.get("parallelism") or 0) > _INDEXED_LIMIT:
            spec.invalid("parallelism", f"at most {_INDEXED_LIMIT} when Indexed")
    elif per_index is not None:
        spec.invalid("backoffLimitPerIndex", "requires indexed completion mode")
    if spec.get("maxFailedIndexes") is not None and per_index is None:
        spec.invalid("backoffLimitPerIndex", "must be specified when maxFailedIndexes is")
    spec.choice("podReplacementPolicy", ("TerminatingOrFailed", "Failed"))
    if spec.get("selector") is not None and not spec.get("manualSelector"):
        spec.invalid("selector", "`selector` not auto-generated")
    template = spec.section("template")
    check_template(template)
    _check_job_restart(spec, template.section("spec"))


def _check_job_restart(spec: Fields, pod: Fields) -> None:
    policy = pod.get("restartPolicy") or "Always"
    if policy == "Always":
        pod.problems.add(
            pod.at("restartPolicy"),
            "Required",
            "a Job's pods must have OnFailure or Never; without a value the server fills in Always",
            "set restartPolicy: Never (or OnFailure)",
        )
    elif policy not in RESTART_POLICIES:
        pod.unsupported("restartPolicy", ("OnFailure", "Never"))
    if spec.get("podFailurePolicy") is None:
        return
    if policy != "Never":
        message = "only 'Never' is supported when podFailurePolicy is set"
        pod.invalid("restartPolicy", message, value=policy)
    for rule in spec.section("podFailurePolicy").entries("rules"):
        action = rule.get("action")
        rule.need("action")
        rule.choice("action", _ACTIONS)
        if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            rule.invalid("action", "requires the backoffLimitPerIndex to be set")
        by_code = rule.get("onExitCodes") is not None
        if by_code == bool(rule.entries("onPodConditions")):
            rule.wrong("specifying one of onExitCodes and onPodConditions is required")
        if by_code:
            codes = rule.section("onExitCodes")
            codes.choice("operator", ("In", "NotIn"))
            if not codes.get("values"):
                codes.invalid("values", "at least one value is required", value=[])


def check_replicated(kind: str) -> Callable[[Fields], None]:
    """Checks of Deployment, StatefulSet or DaemonSet: pods that are to run for ever."""

    def check(manifest: Fields) -> None:
        spec = manifest.section("spec")
        spec.minimum(0, "replicas", "minReadySeconds", "revisionHistoryLimit")
        template = spec.section("template")
        labels = template.section("metadata", "labels")
        if spec.get("selector") is None:
            spec.required("selector")
        else:
            selector = spec.section("selector")
            check_selector(selector)
            if is_empty(selector.value):
                selector.wrong(f"empty selector is invalid for {kind.lower()}", {})
            elif not selects(selector.value, labels.value):
                labels.problems.invalid(
                    labels.path,
                    dict(labels.value),
                    "`selector` does not match template `labels`",
                    "give the template the labels that spec.selector asks for",
                )
        check_template(template)
        pod = template.section("spec")
        if (pod.get("restartPolicy") or "Always") != "Always":
            pod.unsupported("restartPolicy", ("Always",))
        if pod.get("activeDeadlineSeconds") is not None:
            pod.forbidden("activeDeadlineSeconds", f"not for a {kind}")
        _check_update(spec, kind)
        if kind == "StatefulSet":
            _check_stateful(spec)

    return check


def _check_update(spec: Fields, kind: str) -> None:
    field, allowed = _UPDATES[kind]
    strategy = spec.section(field)
    strategy.choice("type", allowed)
    rolling, chosen = strategy.get("rollingUpdate"), strategy.get("type")
    if rolling is not None and chosen == allowed[0 if kind == "Deployment" else 1]:
        strategy.forbidden("rollingUpdate", f"may not be specified with {chosen}")
    update = strategy.section("rollingUpdate")
    for key in ("maxUnavailable", "maxSurge"):
        value = update.get(key)
        if isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            update.invalid(key, "must be e.g. 1 or '25%'")
        update.minimum(0, key)
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if kind == "Deployment" and deadline is not None and deadline <= ready:
        spec.invalid("progressDeadlineSeconds", "must be greater than minReadySeconds")


def _check_stateful(spec: Fields) -> None:
    spec.choice("podManagementPolicy", ("OrderedReady", "Parallel"))
    retention = spec.section("persistentVolumeClaimRetentionPolicy")
    for key in retention.value:
        retention.choice(key, ("Retain", "Delete"))
