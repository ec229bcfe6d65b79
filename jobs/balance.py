"""`ray job submit --working-dir . -- python -m jobs.balance [flags of cptune balance]`.

Kernels are measured on the nodes of the cluster. Ray removes its copy of the uploaded directory, so
--out goes elsewhere.
"""

import os
import sys
from pathlib import Path

from cptune.cli import run


def main(arguments: list[str]) -> int:
    """Run the study on the cluster of this job; returns the exit code."""
    out = next((word for word in arguments if word.startswith("--out")), None)
    if out is not None:
        path = out.partition("=")[2] if "=" in out else _after(arguments, out)
        if Path(path).resolve().is_relative_to(Path.cwd()):
            sys.stderr.write(f"error: --out {path} is inside Ray's copy; wanted a path outside\n")
            return 2
    address = os.environ.get("RAY_ADDRESS")
    given = address is None or any(word.startswith("--address") for word in arguments)
    return run(["balance", *arguments, *([] if given else [f"--address={address}"])])


def _after(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1] if flag in arguments[:-1] else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
