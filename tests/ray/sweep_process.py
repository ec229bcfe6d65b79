"""`cptune` as processes of its own, marked so that whatever they leave behind is found."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from cptune import spec as specs
from cptune.domain.study import SweepSpec
from cptune.store.ledger import ParquetLedger

ROOT = Path(__file__).parents[2]
MARKER = "CPTUNE_TEST_ID"
GONE_S = 8.0  # the raylet notices the end of its driver, then ends its workers

TABLES = ("trials", "ranks", "edges", "steps", "exposures")
FILES = {
    "lock",
    "log.jsonl",
    "recipe.json",
    "recipes.parquet",
    "report.html",
    "run_id",
    "spec.toml",
    "study.db",
    "topology.json",
}

# Four candidates of two ranks. Attention alone sees the context, so that cp2 halves what cp1 holds.
TINY = {
    "model": {
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 16,
        "ffn": 128,
        "vocab": 64,
    },
    "workload": {"seq_len": 128, "global_batch_seqs": 2, "precision": "fp32"},
    "cluster": {"world_size": 2, "device_memory_bytes": 64_000_000},
    "axes": {
        "pp": [1],
        "micro_batch": [1],
        "sharding": ["zigzag", "contiguous"],
        "strategy": ["ring"],
    },
    "objective": {"exposed_comm_share": 0.99, "throughput_slack": 0.99},
    "budget": {
        "trials": 20,
        "warmup_steps": 1,
        "steps": 2,
        "max_steps": 2,
        "finalist_rounds": 0,
        "trial_s": 60.0,
    },
}


def whole_run(run: Path) -> set[str]:
    """The files of a finished run: rows of each attempt and table, traces, proofs."""
    trials = ParquetLedger(run, writable=False).read()
    names = {path.name for path in (run / "trials").iterdir()}
    assert len(names) == len(trials)
    traced = (one for one in trials if one.measurement)
    proven = {one.candidate.key for one in trials if one.proof_id}
    proven.add(json.loads((run / "recipe.json").read_text())["candidate_key"])
    return {
        *FILES,
        *(f"{table}/{name}" for table in TABLES for name in names),
        *(f"traces/{one.number}-{one.attempt}.json.gz" for one in traced),
        *(f"proofs/{key}.json" for key in proven),
    }


def tiny_toml(name: str, **sections: dict[str, object]) -> str:
    """The tiny sweep with some keys of some sections changed."""
    tables = {table: keys | sections.get(table, {}) for table, keys in TINY.items()}
    return tomli_w.dumps({"name": name, **tables})


def tiny_spec(**sections: dict[str, object]) -> SweepSpec:
    return specs.parse(tiny_toml("tiny", **sections), source="tiny", default_name="tiny")


class SweepProcesses:
    """Starts processes under one marker, one HOME and one Ray folder, all of this test alone.

    Args:
        folder: Short, since the sockets of Ray lie below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.marker = uuid.uuid4().hex
        (folder / "home").mkdir()
        # A Ray that this process runs leaves words in os.environ, such as the authentication
        # whose token lies in another HOME; with them no second Ray starts.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = kept | {
            MARKER: self.marker,
            "HOME": str(folder / "home"),
            "RAY_TMPDIR": str(folder),
        }

    def write(self, name: str, **sections: dict[str, object]) -> Path:
        """Write NAME.toml: the tiny sweep with some keys changed."""
        path = self.folder / f"{name}.toml"
        path.write_text(tiny_toml(name, **sections))
        return path

    def start(self, words: Sequence[object], **options: object) -> subprocess.Popen[str]:
        """Start any program in a session of its own, its output in pipes."""
        return subprocess.Popen(
            [str(word) for word in words],
            env=self.environment,
            text=True,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def start_sweep(self, *words: object, **options: object) -> subprocess.Popen[str]:
        """Start `cptune sweep WORDS --runs ...`."""
        command = [sys.executable, "-m", "cptune", "sweep", *words, "--runs", self.runs]
        return self.start(command, **options)

    def sweep(self, *words: object, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
        """Run `cptune sweep WORDS --runs ...` to its end."""
        process = self.start_sweep(*words)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ray_sessions(self) -> list[Path]:
        """One folder for each local Ray that was ever started here."""
        return list((self.folder / "ray").glob("session_2*"))

    def left(self) -> dict[int, str]:
        """The living processes of this test: pid to command line.

        Told by the marker, or by an open file below the folder: Ray's agents overwrite their
        environment.
        """
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self._is_ours(path):
                    words = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(path.name)] = words.decode()[:120].strip()
            except OSError:
                continue
        return found

    def _is_ours(self, path: Path) -> bool:
        if int(path.name) == os.getpid():
            return False
        if f"{MARKER}={self.marker}".encode() in (path / "environ").read_bytes():
            return True
        below = f"{self.folder}/"
        return any(str(link.readlink()).startswith(below) for link in (path / "fd").iterdir())

    def is_trying(self) -> bool:
        """Whether a rank runs its part of a trial now."""
        return any(words.startswith("ray::RankActor.run") for words in self.left().values())

    def wait_gone(self) -> dict[int, str]:
        """What is still there after a few seconds; empty as soon as nothing is."""
        wait_for(lambda: not self.left(), within_s=GONE_S, what=None)
        return self.left()

    def end(self) -> None:
        """Kill, by pid, whatever carries the marker."""
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def sweep_processes() -> Iterator[SweepProcesses]:
    """Processes of one test; none of them may be left at its end."""
    folder = Path(tempfile.mkdtemp(prefix="cp"))
    processes = SweepProcesses(folder)
    try:
        yield processes
        assert processes.wait_gone() == {}
    finally:
        processes.end()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(true: Callable[[], bool], *, within_s: float, what: str | None) -> None:
    """Wait until something holds; a failure with `what` when it does not, None to go on."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            assert what is None, f"{what} did not come within {within_s:g} s"
            return
        time.sleep(0.05)


def run_files(run: Path) -> set[str]:
    """Every file of a run directory, by its path inside."""
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
