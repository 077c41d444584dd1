"""Which server checks belong to which core kind: names, and the rules of the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ridgeline.launch.check import devices, names, services, workloads
from ridgeline.launch.check.catalogue import Kind
from ridgeline.launch.check.metadata import NameRule, Object, check_metadata, section
from ridgeline.launch.check.verdict import Problems

NAME_RULES: Mapping[str, NameRule] = {
    "StatefulSet": names.dns_label,
    "Service": names.dns_label,
    "Namespace": names.dns_label,
    "Role": names.path_segment,
    "RoleBinding": names.path_segment,
}
"""Kinds whose names are not RFC 1123 subdomains."""

CHECKS: Mapping[str, Callable[[Object, Problems], None]] = {
    "Pod": workloads.check_pod,
    "PodTemplate": workloads.check_pod_template,
    "Job": workloads.check_job,
    "CronJob": workloads.check_cron_job,
    "Deployment": workloads.check_replicated("Deployment"),
    "StatefulSet": workloads.check_replicated("StatefulSet"),
    "DaemonSet": workloads.check_replicated("DaemonSet"),
    "Service": services.check_service,
    "PersistentVolumeClaim": services.check_volume_claim,
    "ConfigMap": services.check_config_map,
    "Secret": services.check_secret,
    "Role": services.check_role,
    "RoleBinding": services.check_role_binding,
    "HorizontalPodAutoscaler": services.check_autoscaler,
    "PodDisruptionBudget": services.check_disruption_budget,
    "NetworkPolicy": services.check_network_policy,
    "PriorityClass": services.check_priority_class,
    "ResourceQuota": services.check_quota,
    "LimitRange": services.check_limit_range,
    "ResourceClaim": devices.check_claim,
    "ResourceClaimTemplate": devices.check_claim_template,
    "DeviceClass": devices.check_device_class,
    "Workload": devices.check_workload,
    "PodGroup": devices.check_pod_group,
}


def code_problems(manifest: Object, kind: Kind) -> Problems:
    """What the server's own code says once an object has been decoded."""
    problems = Problems()
    rule = names.dns_subdomain if kind.custom else NAME_RULES.get(kind.name, names.dns_subdomain)
    check_metadata(section(manifest, "metadata"), "metadata", rule, problems)
    if not kind.custom and kind.name in CHECKS:
        CHECKS[kind.name](manifest, problems)
    return problems
