"""deploy/slurm/sweep.sbatch as a batch job of two nodes, both of which are this host."""

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import slurm_stub
from sweep_process import ROOT, SweepProcesses

SCRIPT = ROOT / "deploy" / "slurm" / "sweep.sbatch"
JOB_ID = 4211
PORT = 20000 + JOB_ID % 5000 * 2


class SlurmJob:
    """Starts the script as slurmd would, with the programs of a folder in place of cptune's."""

    def __init__(self, processes: SweepProcesses, programs: Path) -> None:
        self.processes, self.folder = processes, processes.folder
        self.log = self.folder / "slurm.log"
        slurm_stub.install(self.folder / "slurm")
        host = socket.gethostname()
        processes.environment |= {
            "PATH": f"{self.folder / 'slurm'}:{processes.environment['PATH']}",
            "SLURM_STUB_LOG": str(self.log),
            "SLURM_JOB_ID": str(JOB_ID),
            "SLURM_JOB_NODELIST": f"{host},{host}-2",
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SLURM_CPUS_ON_NODE": "2",
            "CPTUNE_BIN": str(programs),
            "CPTUNE_SCRATCH": str(self.folder),
        }

    def start(
        self, *words: object, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        self.processes.environment |= environment or {}
        return self.processes.start(["bash", SCRIPT, *words], cwd=self.folder)

    def run(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        job = self.start(*words, environment=environment)
        out, err = job.communicate(timeout=60)
        return subprocess.CompletedProcess(job.args, job.returncode, out, err)

    def requeues(self) -> list[list[str]]:
        return [words for name, *words in slurm_stub.calls(self.log) if name == "scontrol"][1:]

    def steps(self) -> list[list[str]]:
        return [words for name, *words in slurm_stub.calls(self.log) if name == "srun"]

    def scratch_left(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("cp[0-9]*"))
