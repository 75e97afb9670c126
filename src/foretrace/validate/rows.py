"""Turns a row of measured runs into what is predicted: a model, a plan and a cluster. It sees no measurement."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.hardware.cluster import Cluster
from foretrace.models.model import Model
from foretrace.validate.machines import cluster_of
from foretrace.validate.models import model_of
from foretrace.validate.plans import plan_of
from foretrace.validate.training_runs import RunConfig
from foretrace.workload.plan import Plan


@dataclass(frozen=True, slots=True)
class RowJob:
    """The job that a row describes, and what was assumed about it."""

    model: Model
    plan: Plan
    cluster: Cluster
    notes: tuple[str, ...]


def job_of(config: RunConfig) -> RowJob:
    """The job of a row; an InputError says what is missing."""
    cluster, about_cluster = cluster_of(config)
    model, about_model = model_of(config)
    plan, about_plan = plan_of(config, cluster.gpu.architecture)
    return RowJob(model, plan, cluster, (*about_model, *about_plan, *about_cluster))
