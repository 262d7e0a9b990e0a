"""`meshkit launch local | slurm | k8s`: their arguments, and the files that they write. No JAX."""

import argparse
import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from meshkit.commands import Run, add_command
from meshkit.config import RunConfig, load
from meshkit.errors import MeshkitError
from meshkit.overrides import dotted, words

CLUSTERS = ("slurm", "k8s")

LEAST = {
    **dict.fromkeys(["processes", "devices_per_process", "nodes", "gpus_per_node", "devices_per_node", "least"], 1),
    **dict.fromkeys(["restarts", "grace", "settle"], 0),
}
"""The smallest value of every option that is a number."""


def add(commands: Any) -> None:
    """Add them to the parser."""
    launch = commands.add_parser("launch", help="start a run on many processes", description="Start a run.")
    ways = launch.add_subparsers(title="commands", required=True, metavar="COMMAND")

    local = add_command(ways, "local", _checked(_local), "processes on this machine, supervised")
    local.add_argument("--processes", type=int, default=1, metavar="N", help="(default: 1)")
    local.add_argument("--devices-per-process", type=int, metavar="N", help="simulated (default: the config's share)")

    slurm = add_command(ways, "slurm", _checked(_slurm), "a batch script for SLURM")
    slurm.add_argument("--per", choices=["gpu", "node"], default="gpu", help="a process for each (default: gpu)")
    slurm.add_argument("--time", metavar="D-HH:MM:SS", help="time limit of the job (default: the partition's)")
    slurm.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="more, as --sbatch=--account=me")
    slurm.add_argument("--submit", action="store_true", help="submit it too")

    k8s = add_command(ways, "k8s", _checked(_k8s), "an Indexed Job for Kubernetes, one pod a node")
    k8s.add_argument("--image", required=True, metavar="IMAGE", help="a container image with meshkit in it")
    k8s.add_argument("--claim", required=True, metavar="NAME", help="PersistentVolumeClaim for the runs")

    for name in CLUSTERS:
        way = ways.choices[name]
        way.add_argument("--nodes", type=int, required=True, metavar="N", help="nodes")
        way.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs of a node")
        way.add_argument("--name", metavar="NAME", help="of the job (default: the config's)")
        way.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: in run_dir)")
    for way in ways.choices.values():
        way.add_argument("--restarts", type=int, default=0, metavar="N", help="from the last checkpoint (default: 0)")
        way.add_argument("--elastic", metavar="min=N", help="go on with fewer devices, but N, when some are lost")
        way.add_argument(
            "--grace", type=int, default=120, metavar="S", help="seconds to save in, after a SIGTERM (default: 120)"
        )

    fit = add_command(ways, "fit", _checked(_fit), "the largest mesh on nodes that are left, as options (for scripts)")
    fit.add_argument("--nodes", type=int, required=True, metavar="N", help="nodes there are")
    fit.add_argument("--devices-per-node", type=int, required=True, metavar="N", help="devices of a node")
    fit.add_argument("--least", type=int, default=1, metavar="N", help="nodes to use at least (default: 1)")

    pod = add_command(ways, "pod", _checked(_pod), "one pod of an elastic Job (for manifests)")
    pod.add_argument("--nodes", type=int, required=True, metavar="N", help="pods of the Job, one a node")
    pod.add_argument("--devices-per-node", type=int, required=True, metavar="N", help="devices of a node")
    pod.add_argument("--least", type=int, required=True, metavar="N", help="nodes to go on with at least")
    pod.add_argument("--hosts", required=True, metavar="HOST:PORT", help="of pod {}, as NAME-{}.NAME:8476")
    pod.add_argument("--restarts", type=int, default=0, metavar="N", help="from the last checkpoint (default: 0)")
    pod.add_argument("--grace", type=int, default=120, metavar="S", help="seconds to save in (default: 120)")
    pod.add_argument("--settle", type=float, default=60.0, metavar="S", help="to wait for missing pods (default: 60)")
    for way in ways.choices.values():
        way.usage = f"{way.prog} CONFIG [options] [--KEY VALUE …]"
        way.epilog = "KEY: any config key; meshkit train --help lists them."
        way.add_argument("config", metavar="CONFIG", help="a TOML file")


def _checked(run: Run) -> Run:
    """`run`, for options whose numbers are large enough; else MeshkitError."""

    def checked(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
        for name, value in vars(options).items():
            if name in LEAST and value is not None and value < LEAST[name]:
                raise MeshkitError(f"--{name.replace('_', '-')} {value}: it is at least {LEAST[name]}")
        return run(options, overrides)

    return checked


def _local(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.launch import local

    config, overrides = load(options.config, overrides), dotted(overrides)
    job = local.job(options.config, config, overrides, options.processes, options.devices_per_process)
    job = dataclasses.replace(job, json=options.json)
    return local.run(job, options.restarts, _least(options), options.grace)


def _slurm(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.launch import cluster, slurm

    nodes, config = cluster.nodes(
        load(options.config, overrides), options.nodes, options.gpus_per_node, options.per, _least(options)
    )
    cluster.check_restarts(config, options.restarts, _least(options))
    name = options.name or Path(options.config).stem
    wishes = slurm.Wishes(name, options.time, options.grace, options.restarts, tuple(options.sbatch))
    own = cluster.overrides_on(nodes, dotted(overrides))
    text = slurm.script(options.config, config, own, nodes, wishes, _program())
    (Path(config.run_dir) / "logs").mkdir(parents=True, exist_ok=True)
    file = _write(text, options, config, "job.sbatch")
    job = slurm.submit(file) if options.submit else None
    if options.json:
        print(json.dumps({"file": str(file), "job": job}))
    elif job is None:
        print(f"written to {file}; submit it with: sbatch {shlex.quote(str(file))}", file=sys.stderr)
    else:
        print(f"job {job}; its logs are in {config.run_dir}/logs", file=sys.stderr)
    return 0


def _k8s(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.launch import cluster, k8s

    nodes, config = cluster.nodes(
        load(options.config, overrides), options.nodes, options.gpus_per_node, "node", _least(options)
    )
    cluster.check_restarts(config, options.restarts, _least(options))
    name = options.name or re.sub(r"[^a-z0-9-]", "-", Path(options.config).stem.lower()).strip("-")
    wishes = k8s.Wishes(name, options.image, options.claim, options.grace, options.restarts)
    text = k8s.manifests(options.config, config, cluster.overrides_on(nodes, dotted(overrides)), nodes, wishes)
    file = _write(text, options, config, "job.yaml")
    if options.json:
        print(json.dumps({"file": str(file)}))
    else:
        print(f"written to {file}; start it with: kubectl apply -f {shlex.quote(str(file))}", file=sys.stderr)
    return 0


def _fit(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.launch import cluster

    used, changes = cluster.fit(load(options.config, overrides), options.nodes, options.devices_per_node, options.least)
    print(json.dumps({"nodes": used, **changes}) if options.json else f"{used} {shlex.join(words(changes))}")
    return 0


def _pod(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.launch import pod_job, pods
    from meshkit.mesh import resolve

    config = load(options.config, overrides)
    config = config.model_copy(update={"mesh": resolve(config.mesh, options.nodes * options.devices_per_node)})
    job = pod_job.Job(
        options.config,
        config,
        dotted(overrides),
        options.nodes,
        options.devices_per_node,
        options.least,
        options.hosts,
        options.restarts,
        options.grace,
        options.settle,
    )
    return pods.run(job, pod_job.number(options.nodes))


def _write(text: str, options: argparse.Namespace, config: RunConfig, name: str) -> Path:
    """Show a script, and write it down."""
    file = options.out or Path(config.run_dir) / name
    new = options.out is not None and not file.parent.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MeshkitError(f"{file}: cannot be written ({error.strerror}): choose another place with --out") from None
    if new:
        print(f"--out {file}: a new folder, {file.parent}", file=sys.stderr)
    if not options.json:
        print(text)
    return file


def _program() -> str:
    """The command `meshkit` of this environment, which the nodes of a cluster see in the same place."""
    return str(Path(sys.executable).with_name("meshkit"))


def _least(options: argparse.Namespace) -> int | None:
    """Devices of `--elastic min=N`."""
    if options.elastic is None:
        return None
    match = re.fullmatch(r"min=([1-9]\d*)", options.elastic)
    if match is None:
        raise MeshkitError(f"--elastic {options.elastic}: write min=N, the fewest devices to go on with")
    return int(match[1])
