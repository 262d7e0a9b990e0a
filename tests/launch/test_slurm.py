"""Scripts for SLURM, read by a shell and run by a real SLURM of two nodes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshkit.cli import main
from meshkit.errors import RESTART, SAVED
from tests import slurm_cluster
from tests.launched import QUICKLY, SECONDS, STEPS, Launched, write_config
from tests.slurm_cluster import Slurm
from tests.small_run import curve, logged, saved

ODD = "a folder's $HOME; %j `x`"


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The script of a launch."""

    def write(*words: str) -> str:
        (tmp_path / ODD).mkdir(exist_ok=True)
        config = tmp_path / ODD / "run.toml"
        config.write_text("[mesh]\ntensor = 4\npipe = 2\n[data]\nbatch = 512\n")
        command = ["launch", "slurm", str(config), "--run_dir", str(tmp_path / "run"), *words]
        code = main(command)
        out, err = capsys.readouterr()
        assert code == 0, err
        assert out.rstrip("\n") == (tmp_path / "run" / "job.sbatch").read_text().rstrip("\n"), "shown before it is used"
        return out

    return write


def test_a_script_asks_for_what_the_run_needs(written: Any) -> None:
    text = written(
        "--nodes", "8", "--gpus-per-node", "8", "--time", "1-00:00:00", "--restarts", "5", "--sbatch=--qos=x"
    )
    directives = re.findall(r"^#SBATCH (.*)", text, re.MULTILINE)
    assert {"--nodes=8", "--ntasks-per-node=8", "--gpus-per-node=8", "--requeue", "--signal=B:TERM@120"} <= {
        *directives
    }
    assert {"--time=1-00:00:00", "--qos=x"} <= {*directives}
    assert "--xla_gpu_enable_latency_hiding_scheduler=true" in text
    one_a_node = written("--nodes", "8", "--gpus-per-node", "8", "--per", "node")
    assert "--ntasks-per-node=1\n" in one_a_node
    assert max(len(line.replace(sys.executable, "python")) for line in text.splitlines()) < 250


@pytest.mark.parametrize("more", [[], ["--elastic", "min=16", "--restarts", "3"]])
def test_a_shell_reads_odd_paths_and_values_as_they_are(written: Any, tmp_path: Path, more: list[str]) -> None:
    """The script runs with commands of SLURM that only write down how they are called."""
    text = written("--nodes", "8", "--gpus-per-node", "8", "--data.text", 'it\'s; $(touch hacked) "here"', *more)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("srun", "scontrol", "scancel"):
        (tools / name).write_text(
            f'#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > {tools}/{name}.called\n'
        )
        (tools / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "5"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    called = (tools / "srun.called").read_text().split("\0")
    assert str(tmp_path / ODD / "run.toml") in called
    assert '--data.text=["it\'s; $(touch hacked) \\"here\\""]' in called
    assert not Path("hacked").exists()
    assert not (tools / "scontrol.called").exists()
    if more:  # of 5 nodes the largest mesh that splits the batch takes 4
        assert {"--nodes=4", "--mesh.data=4", "--mesh.tensor=4", "--mesh.pipe=2"} <= {*called}


def test_preemptions_do_not_use_up_restarts(written: Any, tmp_path: Path) -> None:
    """The script of a run that crashes, or is told to end, with commands of SLURM that only write down their call."""
    text = written("--nodes", "8", "--gpus-per-node", "8", "--restarts", "1")
    tools = tmp_path / "tools"
    tools.mkdir()
    called = tools / "scontrol.called"
    (tools / "srun").write_text('#!/bin/sh\n[ "$TOLD" = yes ] && kill -TERM $PPID && sleep 1\nexit "$CODE"\n')
    (tools / "scancel").write_text("#!/bin/sh\n")
    (tools / "squeue").write_text('#!/bin/sh\necho "${STATE:-RUNNING}"\n')
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {called}\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)

    def ends(code: int, told: str = "", job: str = "7", state: str = "") -> bool:
        """Whether the job is put back in the queue after this end; SLURM has restarted it often."""
        called.unlink(missing_ok=True)
        more = {"PATH": f"{tools}:{os.environ['PATH']}", "CODE": str(code), "TOLD": told, "SLURM_JOB_ID": job}
        env = os.environ | more | {"SLURM_RESTART_COUNT": "9", "STATE": state}
        done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (code, "")
        return called.exists() and called.read_text() == f"requeue {job}\n"

    assert ends(SAVED, told="yes")
    assert ends(SAVED), "told by another than the script"
    assert ends(137, told="yes"), "not saved in time"
    assert ends(RESTART), "the one restart after a crash"
    assert ends(SAVED, told="yes")
    assert not ends(137), "none is left"
    assert ends(137, job="8"), "another job has its own"
    assert not ends(1)
    assert not ends(SAVED, told="yes", state="COMPLETING", job="9"), "it was cancelled"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "8"], "--gpus-per-node N is missing"),
        (["--nodes", "3", "--gpus-per-node", "5"], "there are 15: set mesh.data, mesh.tensor, mesh.pipe to one of"),
        (["--nodes", "0", "--gpus-per-node", "8"], "--nodes 0: it is at least 1"),
        (["--nodes", "8", "--gpus-per-node", "8", "--elastic", "16", "--restarts", "1"], "--elastic 16: write min=N"),
        (["--nodes", "8", "--gpus-per-node", "8", "--elastic", "min=16"], "--elastic needs --restarts N"),
        (["--nodes", "8", "--gpus-per-node", "8", "--restarts", "1", "--resume", "never"], "set resume = 'auto'"),
        (["--nodes", "8", "--gpus-per-node", "8", "--elastic", "min=99"], "8 nodes of 8 have 64 devices: choose from"),
        (["--nodes", "8", "--gpus-per-node", "8", "--sbatch=bogus"], "--sbatch=bogus: it is an option of sbatch, as"),
        (["--nodes", "3", "--devices", "8"], "devices = 8 do not split over --nodes 3"),
        (["--nodes", "8", "--gpus-per-node", "8", "--name", 'a"b'], "sbatch cannot read quotes"),
        (["--nodes", "8", "--gpus-per-node", "-8"], "--gpus-per-node -8: it is at least 1"),
        (["--nodes", "8", "--gpus-per-node", "8", "--restarts", "-1"], "--restarts -1: it is at least 0"),
        (["--nodes", "8", "--gpus-per-node", "8", "--grace", "-1"], "--grace -1: it is at least 0"),
        (["--nodes", "8", "--gpus-per-node", "8", "--time", "nonsense"], "--time 'nonsense': SLURM takes MINUTES"),
    ],
)
def test_mistakes_say_what_to_mend(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[mesh]\ntensor = 4\npipe = 2\n[data]\nbatch = 512\n")
    assert main(["launch", "slurm", str(config), "--run_dir", str(tmp_path / "run"), *words]) == 1
    assert said in capsys.readouterr().err


# --- a real SLURM -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = slurm_cluster.MISSING
    if missing or os.getuid() != 0:
        why = f"no {', '.join(missing)} here (Debian's slurm-wlm and munge)" if missing else "SLURM needs root"
        if os.environ.get("MESHKIT_NEEDS_SLURM"):
            pytest.fail(why)
        pytest.skip(why)
    with slurm_cluster.slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def submit(cluster: Slurm, config: Path, run_dir: Path, *words: str) -> str:
    """The number of the job."""
    command = ["launch", "slurm", str(config), "--nodes", "2", "--submit", "--json", "--run_dir", str(run_dir), *words]
    done = subprocess.run(
        [sys.executable, "-m", "meshkit", *command],
        env=cluster.env | QUICKLY,
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["job"]


@pytest.fixture
def stand_in(cluster: Slurm, written: Any, tmp_path: Path) -> Any:
    """Runs the script with a program in place of meshkit that saves and ends on a SIGTERM as a run does, and writes
    down both; the job, and the script's log."""
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/bash\ntrap 'sleep 1; echo saved >>{tmp_path}/events; exit {SAVED}' TERM\n"
        f"echo started >>{tmp_path}/events\nwhile true; do sleep 0.1; done\n"
    )
    program.chmod(0o755)

    def run(*words: str) -> tuple[str, Path]:
        text = written("--nodes", "2", "--devices", "8", *words)
        script = tmp_path / "run" / "job.sbatch"
        script.write_text(text.replace(str(Path(sys.executable).with_name("meshkit")), str(program)))
        job = cluster.run("sbatch", "--parsable", str(script)).strip()
        cluster.wait(lambda: events(tmp_path).count("started") == 2, 60)
        return job, tmp_path / "run" / "logs" / f"job-{job}.log"

    return run


def events(folder: Path) -> list[str]:
    return (folder / "events").read_text().split() if (folder / "events").exists() else []


@pytest.mark.parametrize(
    ("partition", "goes_on"),
    [("cancel", False), ("cancel-in-8-s", True), ("requeue", True), ("requeue-in-8-s", True)],
)
def test_a_job_that_others_go_before_saves_and_comes_back(
    partition: str, goes_on: bool, cluster: Slurm, stand_in: Any, tmp_path: Path
) -> None:
    """By a partition of a higher tier; only what SLURM cancels without a grace time does not come back."""
    job, log = stand_in(f"--sbatch=--partition={partition}")
    urgent = cluster.run("sbatch", "--parsable", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1")
    cluster.wait(lambda: cluster.state(urgent.strip()) == "COMPLETED", 90, log.read_text)
    assert events(tmp_path)[2:4] == ["saved"] * 2
    print(partition, cluster.state(job), events(tmp_path), log.read_text())
    if not goes_on:
        assert cluster.state(job) == "PREEMPTED"
        return
    cluster.wait(lambda: events(tmp_path).count("started") == 4, 90, log.read_text)
    cluster.run("scancel", job)
    cluster.wait(lambda: cluster.state(job) == "CANCELLED", 60, log.read_text)


def test_a_cancelled_job_stays_cancelled(cluster: Slurm, stand_in: Any) -> None:
    job, log = stand_in("--restarts", "1")
    cluster.run("scancel", job)
    cluster.wait(lambda: cluster.state(job) in ("CANCELLED", "PENDING"), 60, log.read_text)
    assert cluster.state(job) == "CANCELLED"
    assert "requeue" not in log.read_text()
    assert "Invalid job id" not in log.read_text()


def said(run_dir: Path) -> str:
    return "".join(f"--- {path}\n{path.read_text()}" for path in sorted((run_dir / "logs").glob("*.log")))


@pytest.mark.timeout(1200)
def test_a_job_that_is_told_to_end_saves_and_goes_on_where_it_was(cluster: Slurm, tmp_path: Path) -> None:
    config, run_dir = write_config(tmp_path, data=4), tmp_path / "a run"
    job = submit(cluster, config, run_dir, "--devices", "8", "--restarts", "1")
    text = lambda: said(run_dir)
    cluster.wait(lambda: (run_dir / "metrics.jsonl").exists() and len(logged(run_dir)) >= 6, SECONDS, text)
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    cluster.wait(lambda: f"the run ended with {SAVED}: requeue after 0 restarts" in text(), 60, text)
    agreed = saved(run_dir)[-1]
    assert 6 <= agreed < STEPS
    assert [record["step"] for record in logged(run_dir)] == list(range(1, agreed + 1))
    cluster.wait(lambda: cluster.state(job) == "COMPLETED", SECONDS, text)
    assert f"goes on after step {agreed} from" in text()
    assert "on 8 simulated devices" in text() or "on 8 devices" in text()

    whole = Launched(config, tmp_path / "whole", "--devices", "8")
    assert whole.finish() == 0, whole.out
    assert curve(logged(run_dir)) == curve(logged(whole.run_dir))

    # A node is gone: the same run goes on with the other, on the half of the devices.
    cluster.run("scontrol", "update", f"NodeName={slurm_cluster.NODES[1]}", "State=DRAIN", "Reason=test")
    steps = ["--steps", str(STEPS + 2)]
    job = submit(cluster, config, run_dir, "--devices", "8", "--restarts", "1", "--elastic", "min=4", *steps)
    cluster.wait(lambda: cluster.state(job) == "COMPLETED", SECONDS, text)
    assert "on 1 nodes: --mesh.data=2 --mesh.tensor=1 --mesh.pipe=2 --pipeline.microbatches=4" in text()
    assert logged(run_dir)[-1]["step"] == STEPS + 2
