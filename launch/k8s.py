"""`meshkit launch k8s`: an Indexed Job of one pod a node, its headless service and its config, as YAML. No JAX.

A pod trains, or, where the run is elastic, is a supervisor (`pods.py`) that agrees with the others who trains.
Every value goes through a YAML writer, so that no path or name can break the file.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from meshkit.config import RunConfig
from meshkit.distributed.launchers import ADDRESS, COUNT, PREEMPTED_EXIT
from meshkit.errors import LATE, SAVED, MeshkitError
from meshkit.launch import flags
from meshkit.launch.cluster import Nodes
from meshkit.overrides import words

PORT = 8476  # of process 0, as JAX's own examples have it
UNCOUNTED = [SAVED, LATE]
"""Exit codes of a pod that saved and ended on a SIGTERM, or whose peers were not there in time: no failure of the run,
so that it is made anew as often as need be. A hang or a lost connection (75) counts."""

LEAST_ELASTIC = 3  # of two nodes, one is not more than half
CONFIG_FOLDER, RUNS_FOLDER = "/etc/meshkit", "/runs"


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the cluster and the user want of the job. claim: the PersistentVolumeClaim that holds the runs."""

    name: str
    image: str
    claim: str
    grace: int
    restarts: int


def manifests(path: str, config: RunConfig, overrides: Mapping[str, Any], nodes: Nodes, wishes: Wishes) -> str:
    """The YAML to `kubectl apply`: its head says how."""
    _check_name(wishes.name, nodes.count)
    _check_claim_and_image(wishes)
    if nodes.least is not None and nodes.count < LEAST_ELASTIC:
        raise MeshkitError(
            f"--elastic with --nodes {nodes.count}: a run in Kubernetes goes on while more than half of its nodes are "
            f"there, so that none of {nodes.count} can be spared: take --nodes {LEAST_ELASTIC} or more, or leave "
            "--elastic out: a Job waits until a lost node is replaced"
        )
    documents = [_config_map(path, wishes), _service(nodes, wishes), _job(path, config, overrides, nodes, wishes)]
    follow = FOLLOW[nodes.least is not None].format(name=wishes.name)
    return HEAD.format(name=wishes.name, follow=follow) + yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )


class _Dumper(yaml.SafeDumper):
    """Text of several lines is written as such."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


HEAD = """# Written by `meshkit launch k8s`.  kubectl apply -f FILE
# {follow}
# Save and end:      kubectl delete job {name}  (SIGTERM, then SIGKILL after the grace period)
# A pod that fails is made anew, and the run goes on from the last checkpoint.
"""

FOLLOW = {
    False: "Follow process 0:  kubectl logs -f -l job-name={name},batch.kubernetes.io/job-completion-index=0",
    True: "Follow all pods:   kubectl logs -f -l job-name={name} --prefix --max-log-requests=1000",
}
"""By whether the run is elastic."""


def _config_map(path: str, wishes: Wishes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": wishes.name},
        "data": {"run.toml": Path(path).read_text(encoding="utf-8")},
    }


def _service(nodes: Nodes, wishes: Wishes) -> dict[str, Any]:
    """Headless: gives each pod a name of its own in DNS, before it is ready, as nobody is ready before process 0."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": wishes.name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": wishes.name},
            "ports": [{"name": f"port-{port}", "port": port} for port in _ports(nodes)],
        },
    }


def _job(path: str, config: RunConfig, overrides: Mapping[str, Any], nodes: Nodes, wishes: Wishes) -> dict[str, Any]:
    # Elastic: a pod whose node is gone never ends, so the run is complete as soon as one pod says so.
    complete = {"successPolicy": {"rules": [{"succeededCount": 1}]}} if nodes.least is not None else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": wishes.name},
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes.count,
            "parallelism": nodes.count,
            **complete,
            # One lost pod makes all fail: a restart of the run is one of every pod.
            "backoffLimit": wishes.restarts * nodes.count,
            "podFailurePolicy": {
                "rules": [
                    # A node that is drained or taken away counts as no failure of the run.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    # Nor do the other pods, which save and end with the drained one, and wait until it is replaced.
                    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": UNCOUNTED}},
                    # 1 is a mistake and 2 wrong usage: a restart would meet them again.
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2]}},
                ]
            },
            "template": {"spec": _pod(config, overrides, nodes, wishes)},
        },
    }


def _pod(config: RunConfig, overrides: Mapping[str, Any], nodes: Nodes, wishes: Wishes) -> dict[str, Any]:
    run_dir = f"{RUNS_FOLDER}/{Path(config.run_dir).name}"
    action = ["train"] if nodes.least is None else ["launch", "pod", *_elastic(nodes, nodes.least, wishes)]
    command = ["meshkit", *action, f"{CONFIG_FOLDER}/run.toml", *words({**overrides, "run_dir": run_dir})]
    command = [word.replace("$(", "$$(") for word in command]  # else Kubernetes puts in variables
    container = {
        "name": "train",
        "image": wishes.image,
        "command": command,
        "env": [{"name": name, "value": value} for name, value in _environment(nodes, wishes).items()],
        "ports": [{"containerPort": port} for port in _ports(nodes)],
        **({} if nodes.simulated else {"resources": {"limits": {"nvidia.com/gpu": nodes.devices}}}),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER},
            {"name": "runs", "mountPath": RUNS_FOLDER},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "restartPolicy": "Never",  # the Job, not the kubelet, makes pods anew: on another node if need be
        "subdomain": wishes.name,
        "terminationGracePeriodSeconds": wishes.grace,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_apart(wishes)]}},
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": wishes.name}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": wishes.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},  # NCCL's; a container's own is 64 MiB
        ],
    }


def _apart(wishes: Wishes) -> dict[str, Any]:
    """One pod a node."""
    return {"labelSelector": {"matchLabels": {"job-name": wishes.name}}, "topologyKey": "kubernetes.io/hostname"}


def _hosts(wishes: Wishes) -> str:
    """Where JAX's coordinator listens in pod {}."""
    return f"{wishes.name}-{{}}.{wishes.name}:{PORT}"


def _ports(nodes: Nodes) -> list[int]:
    """Of JAX's coordinator, and of the supervisors where there are any."""
    return [PORT] if nodes.least is None else [PORT, PORT + 1]


def _elastic(nodes: Nodes, least: int, wishes: Wishes) -> list[str]:
    """Options of the supervisor that each pod runs (`pods.py`)."""
    options = {
        "nodes": nodes.count,
        "devices-per-node": nodes.devices,
        "least": least,
        "hosts": _hosts(wishes),
        "restarts": wishes.restarts,
        "grace": wishes.grace,
    }
    return [f"--{name}={value}" for name, value in options.items()]


def _environment(nodes: Nodes, wishes: Wishes) -> dict[str, str]:
    """The pod's number comes from Kubernetes itself (JOB_COMPLETION_INDEX)."""
    gpu = {} if nodes.simulated else {name: value for name, (value, _) in flags.environment().items()}
    place = {ADDRESS: _hosts(wishes).format(0), COUNT: str(nodes.count)}
    return {
        **(place if nodes.least is None else {}),  # else the supervisors agree on it
        PREEMPTED_EXIT: str(SAVED),
        "PYTHONUNBUFFERED": "1",
        **gpu,
    }


def _check_name(name: str, count: int) -> None:
    """Pods are called NAME-INDEX, which is a label in DNS."""
    most = 63 - len(f"-{count - 1}")
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > most:
        raise MeshkitError(
            f"--name {name}: Kubernetes takes small letters, digits and '-', beginning with a letter, at most {most}"
        )


def _check_claim_and_image(wishes: Wishes) -> None:
    """A claim is called like a domain."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", wishes.claim) or len(wishes.claim) > 253:
        raise MeshkitError(
            f"--claim {wishes.claim!r}: the name of a PersistentVolumeClaim has small letters, digits, '-' and '.', "
            "begins and ends with a letter or digit, and is at most 253 long"
        )
    if not re.fullmatch(r"\S+", wishes.image):
        raise MeshkitError(f"--image {wishes.image!r}: write one as registry.example/meshkit:1, without spaces")
