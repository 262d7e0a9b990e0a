"""`meshkit.plan`: the ranked layouts of a model on a cluster."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from meshkit.config import MeshShape, ModelConfig, RunConfig, load
from meshkit.errors import MeshkitError, nearest
from meshkit.mesh import resolve
from meshkit.models.presets import check_cut, sizes
from meshkit.pipeline.costs import WIDENING, uncounted
from meshkit.planner import cluster as clusters
from meshkit.planner import search
from meshkit.planner.cluster import Cluster
from meshkit.planner.hardware import GIB, ICI
from meshkit.planner.layout import Job, Layout, beyond, of_config
from meshkit.planner.profile import PROFILES
from meshkit.planner.search import Plan

Config = str | os.PathLike[str] | Mapping[str, Any] | RunConfig

MORE = 16384
"""Devices up to which clusters are tried before it is said that none would do."""


def plan(
    config: Config | None = None,
    cluster: str | Cluster = "8xh100",
    *,
    model: str | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    nodes_of: int | None = None,
    mesh: MeshShape | None = None,
    profile: str = "meshkit",
) -> Plan:
    """Every legal layout of a model on a cluster that fits, estimated, fastest first.

    config: a run's config, whose model, batch and sequence are planned, and whose own layout is ranked if it has a
    mesh; or `model`, a preset. cluster: `64xh100`, a TOML file's path or a Cluster. nodes_of: devices of a node.
    mesh: one to be ranked in any case. profile: the framework, by name.
    Raises MeshkitError when nothing is legal, or nothing fits, with what would.
    """
    if (config is None) == (model is None):
        raise MeshkitError("a plan is for a config or for a model: give one of them, as --model llama3-70b")
    if profile not in PROFILES:
        raise MeshkitError(f"--profile {profile}: no such profile; {nearest(profile, PROFILES)}")
    on = clusters.parse(cluster, nodes_of) if isinstance(cluster, str) else cluster
    run = load(config if config is not None else {"model": {"preset": model}})
    job = _job(run, model or run.model.preset, config is None, global_batch, sequence)
    found = search.search(job, on, PROFILES[profile])
    if not found.best:
        is_given = nodes_of is not None or isinstance(cluster, Cluster) or cluster.endswith(".toml")
        raise MeshkitError(_too_small(found, _node_size(on, is_given)))
    own, why = None, ""
    if mesh is not None:
        mesh = resolve(mesh, on.devices)
        check_cut(job.sizes, mesh, job.sequence)
    else:
        mesh = _own_mesh(run, on.devices) if config is not None else None
        if mesh is not None:
            own, why = _own_layout(run, mesh, job)
    return dataclasses.replace(found, asked=mesh, own=own, why_no_own=why, ignored=tuple(beyond(run, job.sizes)))


def _own_layout(run: RunConfig, mesh: MeshShape, job: Job) -> tuple[Layout | None, str]:
    """The config's layout, of the batch that is planned; or why that batch has none."""
    try:
        return of_config(run.model_copy(update={"data": run.data.model_copy(update={"batch": job.batch})}), mesh), ""
    except MeshkitError as error:
        return None, str(error)


def _own_mesh(run: RunConfig, devices: int) -> MeshShape | None:
    """The config's mesh on this many devices; None when it has none, or one for another number."""
    if "mesh" not in run.model_fields_set:
        return None
    known = max(run.mesh.data, 1) * max(run.mesh.tensor, 1) * max(run.mesh.pipe, 1)
    is_free = -1 in run.mesh.sizes.values()
    return resolve(run.mesh, devices) if devices % known == 0 and (is_free or known == devices) else None


def _job(run: RunConfig, name: str, is_preset: bool, batch: int | None, sequence: int | None) -> Job:
    chosen = sizes(run.model if not is_preset else ModelConfig(preset=name))
    batch = batch if batch is not None else 512 if is_preset else run.data.batch
    sequence = sequence if sequence is not None else min(4096, chosen.context) if is_preset else run.data.sequence
    for option, value in (("--global-batch", batch), ("--sequence", sequence)):
        if value < 1:
            raise MeshkitError(f"{option} {value}: it is at least 1")
    if sequence > chosen.context:
        raise MeshkitError(f"--sequence {sequence} exceeds the context of {name}: {chosen.context}")
    what = uncounted(chosen)
    if what is not None:
        raise MeshkitError(f"{what}: the planner counts the work of {', '.join(WIDENING)}, not of other models")
    return Job(name, chosen, batch, sequence, run.precision)


def _too_small(found: Plan, per_node: int) -> str:
    """Why nothing fits, and how many devices, in whole nodes of `per_node`, or which policy, would do."""
    tight, on = found.tight, found.cluster
    if tight is None:
        raise AssertionError("a search that tried layouts and fitted none has a tightest")
    text = (
        f"{found.job.model} fits no layout of {on}: the tightest, {tight.layout}, needs "
        f"{tight.peak_memory / GIB:.1f} of {tight.budget / GIB:.1f} GiB a device"
    )
    ways = []
    enough = _enough(found, per_node)
    if enough is not None:
        bigger, layout = enough
        nodes = f"{bigger.nodes} whole node{'s' if bigger.nodes > 1 else ''} of {bigger.per_node}"
        ways.append(f"{bigger.devices} devices would do, {nodes}, and no fewer nodes ({layout})")
    kinds = max(tight.memory, key=lambda stage: sum(stage.values()))
    if tight.peak_memory - kinds["activations"] <= tight.budget:
        ways.append("offload = true, which keeps activations in the host's memory, would do")
    if tight.peak_memory - kinds["gradients"] / 2 <= tight.budget:
        ways.append('grad_dtype = "bfloat16" would do')
    return f"{text}; {', or '.join(ways) or 'more devices do not help: shorten --sequence'}"


def _node_size(on: Cluster, is_given: bool) -> int:
    """Devices of a whole node: of the cluster's, if that is given; else the usual, of which it may be a part. A TPU's
    pod is lent in slices."""
    return on.per_node if is_given or on.nodes > 1 or on.accelerator.link.name == ICI[0] else on.accelerator.node


def _enough(found: Plan, per_node: int) -> tuple[Cluster, Layout] | None:
    """The fewest whole nodes on which a layout fits, with one; None when MORE devices have none."""
    on = found.cluster
    for nodes in range(on.devices // per_node + 1, max(2, MORE // per_node) + 1):
        bigger = clusters.regular(on.accelerator, nodes * per_node, per_node)
        layout = search.first_fitting(found.job, bigger, found.profile)
        if layout is not None:
            return bigger, layout
    return None
