"""`srun` and `scontrol` for one host that stands for all nodes of an allocation.

Installed under these names. As with Slurm, srun's tasks run in sessions of their own with srun's
standard input, SIGTERM to srun kills them where they stand, and srun ends with the highest code of
its tasks. Each call is a line of $SLURM_STUB_LOG.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def srun(words: list[str]) -> int:
    first = next(place for place, word in enumerate(words) if not word.startswith("--"))
    options = dict(word[2:].partition("=")[::2] for word in words[:first])
    tasks = [
        subprocess.Popen(words[first:], start_new_session=True)
        for _ in range(int(options["ntasks"]))
    ]

    def force(*_: object) -> None:
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, force)
    codes = [task.wait() for task in tasks]
    return max(code if code >= 0 else 128 - code for code in codes)


def scontrol(words: list[str]) -> int:
    if words[:2] == ["show", "hostnames"]:
        sys.stdout.write(words[2].replace(",", "\n") + "\n")
    return 0


def install(folder: Path) -> None:
    """Put both into a folder that is to stand first in PATH."""
    folder.mkdir()
    for name in ("srun", "scontrol"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        program.chmod(0o755)


def calls(log: Path) -> list[list[str]]:
    """What was called, in order: program and words."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    with Path(os.environ["SLURM_STUB_LOG"]).open("a") as log:
        log.write(json.dumps([name, *given]) + "\n")
    sys.exit({"srun": srun, "scontrol": scontrol}[name](given))
