"""`meshkit launch slurm`: a batch script for SLURM, short enough to be read and changed. No JAX."""

import dataclasses
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshkit.config import RunConfig
from meshkit.distributed.launchers import PREEMPTED_EXIT
from meshkit.errors import LATE, RESTART, SAVED, MeshkitError
from meshkit.launch import elastic, flags
from meshkit.launch.cluster import Nodes
from meshkit.overrides import words

WAIT_SECONDS = 60
"""After the first process of a run has ended, the others get so long before SLURM ends them."""

TIME = r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED"


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the site and the user want of the job. options: more lines for sbatch, as "--partition=big"."""

    name: str
    time: str | None
    grace: int
    restarts: int
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in self.options:
            if not re.fullmatch(r"--?[A-Za-z].*", option):
                raise MeshkitError(f"--sbatch={option}: it is an option of sbatch, as --sbatch=--account=me")
        if self.time is not None and not re.fullmatch(TIME, self.time):
            raise MeshkitError(
                f"--time {self.time!r}: SLURM takes MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, "
                "DAYS-HOURS:MINUTES, DAYS-HOURS:MINUTES:SECONDS, as 2-12:00:00, or UNLIMITED"
            )


def script(
    path: str, config: RunConfig, overrides: Mapping[str, Any], nodes: Nodes, wishes: Wishes, program: str
) -> str:
    """The batch script that trains `path` with `overrides` on `nodes`. program: the command `meshkit` of the nodes."""
    logs = str(Path(config.run_dir).absolute() / "logs")
    directives = {
        "job-name": wishes.name,
        "nodes": nodes.spelled,
        "ntasks-per-node": str(nodes.processes),
        **({"gpus-per-node": str(nodes.devices)} if not nodes.simulated else {}),
        "exclusive": None,
        **({"time": wishes.time} if wishes.time else {}),
        "output": f"{_literal(logs)}/job-%j.log",
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:TERM@{wishes.grace}",
    }
    lines = [f"#SBATCH {_directive(name, value)}" for name, value in directives.items()]
    lines += [f"#SBATCH {option}" for option in wishes.options]
    fitted = elastic.changes(config) if nodes.least is not None else {}
    command = [program, "train", path, *words({key: v for key, v in overrides.items() if key not in fitted})]
    return TEMPLATE.format(
        directives="\n".join(lines),
        folder=shlex.quote(str(Path.cwd())),
        exports="\n".join(_exports(nodes)),
        fit=_fit(nodes, [program, "launch", "fit", path, *words({**overrides, **fitted})]) if fitted else "",
        nodes='--nodes="$nodes" ' if fitted else "",
        wait=WAIT_SECONDS,
        output=shlex.quote(f"{_literal(logs)}/process-%t.log"),
        command=shlex.join(command) + (' "${mesh[@]}"' if fitted else ""),
        restart=RESTART,
        saved=SAVED,
        late=LATE,
        restarts=wishes.restarts,
        crashes=shlex.quote(f"{logs}/crashes"),
    )


TEMPLATE = """#!/bin/bash
# One line a setting; change what you like. Written by `meshkit launch slurm`.
{directives}

cd {folder} || exit 1
{exports}
{fit}
# SLURM tells this shell when the time is nearly over or the job is preempted (and `scancel -b -s TERM JOB` does):
# it tells the run, whose processes agree on a step, save it and end. A job that is over already (plain `scancel JOB`,
# `scontrol requeue JOB`) is no longer RUNNING then: SLURM has told the run, and does itself what was asked for.
asked=no
told() {{
    [ "$asked" != no ] || asked=$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")
    [ "$asked" != RUNNING ] || scancel --signal=TERM "$SLURM_JOB_ID"
}}
trap told TERM

# Process 0 writes process-0.log, the one to read; what another has to say stands in its own.
srun {nodes}--kill-on-bad-exit=0 --wait={wait} --open-mode=append --output={output} \\
    {command} &
step=$!
while true; do  # a signal ends `wait`, but not the run
    wait $step
    code=$?
    kill -0 $step 2>/dev/null || break
done

# {restart}: hung, or lost another process; {saved}: was told to end, and saved; {late}: others did not come in time;
# over 128: ended by a signal. The job begins again in its place in the queue, from the last checkpoint. 1: a mistake
# that a restart would meet again. Each crash is a line of a file: SLURM's own count of restarts would have those after
# a preemption in it.
crashes={crashes}-$SLURM_JOB_ID
if [ $code -ge {restart} ] && [[ $asked = no || $asked = RUNNING ]]; then
    [ $asked = RUNNING ] || [ $code = {saved} ] || echo "ended with $code" >>"$crashes"
    if [ ! -e "$crashes" ] || [ "$(wc -l <"$crashes")" -le {restarts} ]; then
        echo "the run ended with $code: requeue after ${{SLURM_RESTART_COUNT:-0}} restarts"
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit $code
"""


def _exports(nodes: Nodes) -> list[str]:
    lines = [
        "export PYTHONUNBUFFERED=1",
        f"export {PREEMPTED_EXIT}={SAVED}  # of a run that was told to end before its last step",
    ]
    if nodes.simulated:
        return lines
    for name, (value, reasons) in flags.environment().items():
        for reason in reasons:
            lines += textwrap.wrap(reason, 110, initial_indent="# ", subsequent_indent="#   ")
        kept = f"{value} ${{XLA_FLAGS:-}}" if name == "XLA_FLAGS" else f"${{{name}:-{value}}}"
        lines.append(f'export {name}="{kept}"')
    return lines


def _fit(nodes: Nodes, command: list[str]) -> str:
    """Lines that choose the mesh for the nodes that the job got."""
    fit = f'{shlex.join(command)} --nodes "$SLURM_JOB_NUM_NODES" --devices-per-node {nodes.devices}'
    return (
        "\n# As many nodes as SLURM has at a (re)start: the largest mesh on them, the global batch kept.\n"
        f"fitted=$({fit} --least {nodes.least}) || exit 1\n"
        'read -r nodes line <<<"$fitted"; read -r -a mesh <<<"$line"\n'
        'echo "on $nodes nodes: $line"\n'
    )


def _literal(path: str) -> str:
    """A path in which SLURM shall replace nothing."""
    return path.replace("%", "%%")


def _directive(name: str, value: str | None) -> str:
    """An option for sbatch, which reads double quotes, but no escapes inside."""
    if value is None:
        return f"--{name}"
    if re.search(r'["\\\n]', value):
        raise MeshkitError(f"{name} {value!r}: sbatch cannot read quotes, backslashes or line ends in it")
    return f"--{name}={value}" if re.fullmatch(r"[\w./:@%+,-]+", value) else f'--{name}="{value}"'


def submit(file: Path) -> str:
    """Submit the script; the job's number."""
    if shutil.which("sbatch") is None:
        raise MeshkitError(f"--submit: there is no sbatch here; on the cluster: sbatch {shlex.quote(str(file))}")
    done = subprocess.run(["sbatch", "--parsable", file], capture_output=True, text=True)
    if done.returncode:
        raise MeshkitError(f"sbatch refused {file}: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]
