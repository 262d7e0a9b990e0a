"""The real compiler's word on a config: its train step compiled for a cluster that is not there. No JAX here.

XLA's CUDA compiler needs no GPU: it is told what one is like (`gpus.py`). The step that `meshkit.train` would run
is compiled in a child process (`compile_child.py`) for every GPU of the cluster at once, and read (`figures.py`).
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from meshkit import mesh
from meshkit.config import DataConfig, RunConfig
from meshkit.data.paths import weights
from meshkit.data.text import ByteTokenizer
from meshkit.data.tokens import Header
from meshkit.errors import MeshkitError
from meshkit.planner.beside import beside, estimated
from meshkit.planner.cluster import Cluster
from meshkit.planner.compile_child import Request
from meshkit.planner.compile_report import Memory, Report
from meshkit.planner.figures import Figures, Traffic, Work
from meshkit.planner.gpus import gpu

Backend = Literal["cuda", "cpu"]

CHILD = [sys.executable, "-P", "-m", "meshkit.planner.compile_child"]

TIMEOUT = 1800.0
"""Seconds that a compiler may take: the largest models take minutes."""

INSTALL = 'pip install "meshkit[compile]"'
LEGALITY = "--backend cpu needs nothing more and checks that the step is legal on the cluster, without its memory"

REASONS = (
    (r"No PTX compilation provider|[Pp]txas.*(not found|No such file)|Couldn't find ptxas", "it has no ptxas"),
    (r"libdevice.*(not found|required by this HLO)|Can't find libdevice", "it has no libdevice"),
    (r"DNN.*(not available|not found|initialization failed)|[Ll]ibcudnn|cudnn.*(library|symbol)", "it has no cuDNN"),
    (r"libnvvm|[Nn]vvm.*not found", "it has no libNVVM"),
)
"""What a compiler says when a part of it is missing -> a clause for the user."""


CHATTER = re.compile(r"[IW]\d{4} |WARNING: All log messages before absl::")
"""Lines that XLA writes however a compilation goes."""


def compile_step(
    config: RunConfig,
    cluster: Cluster,
    backend: Backend = "cuda",
    hlo: Path | None = None,
    timeout: float = TIMEOUT,
) -> Report:
    """Compile the train step of `config` for `cluster` and report its memory, products and exchanges.

    backend: "cuda", or "cpu", which checks only that the step is legal. hlo: a file for the program's text.
    Raises MeshkitError for a config that does not fit the cluster, when the compiler is not installed, crashes, or
    takes more than `timeout` seconds.
    """
    shape = mesh.resolve(config.mesh, cluster.devices)
    config = config.model_copy(update={"mesh": shape})
    kind = None if backend == "cpu" else gpu(cluster.accelerator.name)
    target = None if kind is None else kind.target_config(cudnn_version())
    if hlo is not None:
        _check_writable(hlo)
    vocab, notes = data_vocab(config.data)
    nodes = [i // cluster.per_node for i in range(cluster.devices)]
    crossing = mesh.placement_warning(shape, nodes)
    request = Request(
        config.model_dump(mode="json", exclude_unset=True),
        vocab,
        cluster.nodes,
        cluster.per_node,
        target,
        None if hlo is None else str(hlo.absolute()),
    )
    said = _ask(request, timeout)
    notes += [crossing] if crossing else []
    about = dict(cluster=str(cluster), backend=backend, config=config, jax=said["jax"], seconds=said["seconds"])
    if kind is None:
        return Report(**about, memory=None, figures=None, beside=[], notes=notes)
    memory, figures = Memory.of(said["memory"], kind.memory), _figures(said["figures"])
    ours = estimated(config, cluster, vocab)
    notes += [ours] if isinstance(ours, str) else []
    rows = [] if isinstance(ours, str) else beside(ours, memory.arguments, memory.peak, figures)
    return Report(**about, memory=memory, figures=figures, beside=rows, notes=notes)


def cudnn_version() -> tuple[int, int, int]:
    """The version of cuDNN that the compiler will load. Raises MeshkitError when there is no compiler."""
    for cuda in (13, 12):
        if importlib.util.find_spec(f"jax_cuda{cuda}_plugin") is None:
            continue
        try:
            major, minor, patch = importlib.metadata.version(f"nvidia-cudnn-cu{cuda}").split(".")[:3]
        except importlib.metadata.PackageNotFoundError:
            raise MeshkitError(f"XLA's CUDA compiler lacks nvidia-cudnn-cu{cuda}: {INSTALL}; {LEGALITY}") from None
        return int(major), int(minor), int(patch)
    raise MeshkitError(f"XLA's CUDA compiler is not installed (no GPU is needed for it): {INSTALL}; {LEGALITY}")


def data_vocab(data: DataConfig) -> tuple[int | None, list[str]]:
    """The vocabulary that `train` would take from the data, if they are here, else a note for the user."""
    prepared = [path for path in weights(data.tokens) if Path(path).is_dir()]
    if prepared:
        return Header.read(Path(prepared[0])).vocab, []
    if data.text and data.tokenizer is None:
        return ByteTokenizer.vocab, []
    source = f"data.tokens = {data.tokens!r}" if data.tokens else f"data.tokenizer = {data.tokenizer!r}"
    if not (data.tokens or data.tokenizer):
        return None, []
    return None, [f"{source} is not read here: the vocabulary is the model's, which train takes from the data"]


def _ask(request: Request, timeout: float) -> dict[str, Any]:
    """The child's answer. Raises MeshkitError in its words, or about its end without any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        try:
            child = subprocess.run(
                [*CHILD, str(path)],
                input=json.dumps(dataclasses.asdict(request)),
                env=environment,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise MeshkitError(
                f"the compiler took more than {timeout:g} s and was stopped: give it more with --timeout; fewer "
                "layers or microbatches unrolled (pipeline.unroll) compile faster"
            ) from None
        if not path.exists():
            raise MeshkitError(_post_mortem(child.returncode, child.stderr, for_gpus=request.target is not None))
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "error" in said:
        raise MeshkitError(said["error"])
    return said


def _post_mortem(code: int, stderr: str, for_gpus: bool) -> str:
    """Why a child ended without an answer, as a sentence."""
    for form, clause in REASONS:
        if re.search(form, stderr):
            return f"XLA's CUDA compiler is not whole, {clause}: {INSTALL}; {LEGALITY}"
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"crashed ({signal.Signals(-code).name})"
        if -code == signal.SIGKILL:
            how += ", as when this machine runs out of memory"
    lines = [line for line in stderr.splitlines() if line.strip() and not CHATTER.match(line)]
    said = "\n".join(f"  {line[:400]}" for line in lines[-8:])
    return f"the compiler {how}" + f"; {LEGALITY}" * for_gpus + (f". Its last words:\n{said}" if said else "")


def _check_writable(path: Path) -> None:
    """MeshkitError now, rather than after minutes of compiling."""
    try:
        path.touch()
    except OSError as error:
        raise MeshkitError(f"--hlo {path}: cannot be written: {error}") from None


def _figures(said: dict[str, Any]) -> Figures:
    return Figures([Work(**w) for w in said["work"]], [Traffic(**t) for t in said["traffic"]], said["uncounted"])
