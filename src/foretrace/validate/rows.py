"""Turns a row of measured runs into what is predicted: a model, a plan and a cluster. It sees no measurement."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from foretrace.hardware.cluster import Cluster
from foretrace.models.model import Model
from foretrace.validate.machines import cluster_of
from foretrace.validate.models import model_of
from foretrace.validate.plans import plan_of
from foretrace.validate.training_runs import RunConfig
from foretrace.workload.layout import Layout, mtp_counts
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
    if config.family.lower() == "megatron-bridge" and re.match(r"deepseek[ _-]?v3", config.model.lower()):
        plan = _with_recipe_layout(model, plan)
    return RowJob(model, plan, cluster, (*about_model, *about_plan, *about_cluster))


def _with_recipe_layout(model: Model, plan: Plan) -> Plan:
    """Returns a plan of DeepSeek-V3 with the layout of its recipe, which is the same with and without MTP.

    recipes/deepseek/deepseek_v3.py, `set_deepseek_v3_pipeline_model_parallel_layout`: MTP is what a model with it has
    next to the loss.
    """
    parts, layers = plan.pp * plan.vpp, len(model.layers)
    if plan.pp == 1 or plan.layout is not None or layers % parts == 0 or layers + 2 < parts:
        return plan
    return replace(plan, layout=str(Layout.of(mtp_counts(layers, parts), model.mtp)))
