"""Runs a small sweep through a Slurm that lives in a temporary folder, and compares its rows.

    apt-get install slurm-wlm munge        # Debian's packages; nothing needs to be configured
    python scripts/check/slurm.py

Starts munged, slurmctld and slurmd on the loopback with one node, runs the same sweep through
Hydra's basic launcher and through ``hydra/launcher=slurm``, once more with one job killed and
resumed, compares the CSVs but for times, and ends every process it started. Exit status 0: equal.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.records.types import format_reasons, parse_reasons
from spec_bench.system.files import get_results_file, read_csv
from spec_bench.vocabulary import columns

Value = TypeVar("Value")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
# What the clock, the meter and the machine's other work decide.
TIMES = {
    *(name for each in columns.list_columns_of_kind("time", "energy") for name in each.names),
    *("load_average", "clock_mhz", "stalls", "bandwidth_bytes_per_s"),
}
PATIENCE_S = 60.0
CONF = """\
ClusterName=check
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=check Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
SWEEP = (
    *("-m", "task=xsum,wmt18_deen", "cells=[sd:3,rsd_s:2x2]", "prompts=6", "warmup=0"),
    *("generation.max_new_tokens=16", "sink=quiet", "engine.threads=1"),
)
SLURM = ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1")


def main() -> int:
    missing = [program for program in PROGRAMS if find(program) is None]
    if missing:
        print(f"missing: {', '.join(missing)}; apt-get install slurm-wlm munge", file=sys.stderr)
        return 2
    with anywhere() as folder:
        return compare(folder)


def compare(folder: Path) -> int:
    """The sweep three ways; 0 where all give the same rows."""
    sweep(folder, "basic")
    sweep(folder, "slurm", *SLURM)
    kill_a_job(folder, "killed")
    sweep(folder, "killed", *SLURM)
    expected = rows(folder / "basic")
    status = 0
    for way in ("slurm", "killed"):
        found = rows(folder / way)
        differing = {
            name
            for ours, theirs in zip(found, expected, strict=False)
            for name in ours
            if ours[name] != theirs.get(name)
        }
        equal = found == expected
        said = "equal but for times" if equal else f"DIFFERENT in {sorted(differing)}"
        print(f"{way}: {len(found)} rows, {said}")
        status |= int(not equal)
    jobs = sorted(path.name for path in (folder / "slurm/runs/.submitit").glob("[0-9]*_*"))
    print(f"Slurm ran the tasks {', '.join(jobs)}")
    return status


def command(folder: Path, way: str, *more: str) -> list[str]:
    results = f"results={folder / way}"
    return [sys.executable, "-m", "spec_bench", *SWEEP, results, *more]


def sweep(folder: Path, way: str, *more: str) -> None:
    """Runs the sweep to its end."""
    print(f"{way}: {' '.join(more) or 'basic launcher'}", flush=True)
    done = subprocess.run(command(folder, way, *more), capture_output=True, text=True)
    if done.returncode:
        for log in (folder / way).glob("runs/.submitit/**/*.err"):
            print(log.read_text()[-1000:], file=sys.stderr)
        print(done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(1)


def kill_a_job(folder: Path, way: str) -> None:
    """Starts the sweep and kills -9 the first task that has decoded a prompt."""
    process = subprocess.Popen(
        command(folder, way, *SLURM), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        victim = wait_for(lambda: decoding(folder / way), "a task that decodes")
        os.kill(victim, signal.SIGKILL)
        print(f"{way}: killed -9 process {victim} of a task that was decoding", flush=True)
        wait_for(lambda: quiet(), "the other task's end")
    finally:
        process.kill()
        process.wait()


def decoding(results: Path) -> int | None:
    """A process that holds a cell whose first prompt is on disk."""
    begun = {path.parent / ".lock" for path in results.glob("runs/*/generations.jsonl")}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if Path(os.readlink(link)) in begun:
                return int(link.parts[2])
        except OSError:
            continue
    return None


def quiet() -> bool:
    """Whether no job is queued or runs."""
    jobs = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True)
    return not jobs.stdout.strip()


def rows(results: Path) -> list[dict[str, str]]:
    """The CSV's rows without times, and without remarks about them."""
    return [*map(timeless, read_csv(get_results_file(results, "default")))]


def timeless(row: dict[str, str]) -> dict[str, str]:
    """A row without times, and without remarks about them."""
    reasons = [
        each
        for each in parse_reasons(row["reason"])
        if each.column not in TIMES and not each.text.startswith("ends over")
    ]
    own = {**row, "reason": format_reasons(reasons)}
    return {name: value for name, value in own.items() if name not in TIMES}


@contextmanager
def anywhere() -> Iterator[Path]:
    """A cluster in a temporary folder, which it gives."""
    with tempfile.TemporaryDirectory(prefix="slurm_check-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # munge's socket must be reachable
        with cluster(folder):
            yield folder


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A cluster of one node in the folder, this process's ``SLURM_CONF`` pointing to it."""
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    ports = free_ports(2)
    (folder / "slurm.conf").write_text(
        CONF.format(
            host=socket.gethostname().partition(".")[0],
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=folder,
            controller_port=ports[0],
            node_port=ports[1],
            cpus=os.cpu_count(),
        )
    )
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(start(folder, "munged", "--foreground", "--force", *munge_paths(folder)))
        wait_for((folder / "munge.socket").exists, "munge's socket")
        started.append(start(folder, "slurmctld", "-D"))
        started.append(start(folder, "slurmd", "-D"))
        wait_for(idle, "an idle node")
        yield
    finally:
        subprocess.run(["scancel", "-u", pwd.getpwuid(os.getuid()).pw_name], check=False)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        print("ended: slurmd, slurmctld, munged")


def munge_paths(folder: Path) -> list[str]:
    """Every file of munged in the folder."""
    names = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid"}
    names["seed-file"] = "seed"
    return [f"--{option}={folder}/munge.{suffix}" for option, suffix in names.items()]


def start(folder: Path, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A daemon in the foreground, its output in the folder."""
    path = find(program)
    assert path is not None
    with (folder / f"{program}.out").open("wb") as stream:
        return subprocess.Popen([path, *arguments], stdout=stream, stderr=stream)


def idle() -> bool:
    """Whether the node takes jobs."""
    state = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
    return state.stdout.strip() == "idle"


def wait_for(look: Callable[[], Value], what: str) -> Value:
    """Asks until the answer is true.

    Raises:
        TimeoutError: it never is.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {PATIENCE_S:.0f} s")
        time.sleep(0.02)
    return found


def find(program: str) -> str | None:
    """A program's path; daemons lie where only root's PATH looks."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    sys.exit(main())
