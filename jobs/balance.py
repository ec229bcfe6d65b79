"""`ray job submit --working-dir . -- python -m jobs.balance [flags of cptune balance]`.

Kernels are measured on the nodes of the cluster. Ray removes its copy of the uploaded directory, so
--out and --figure go elsewhere.
"""

import os
import sys
from pathlib import Path

from cptune.cli import run


def main(arguments: list[str]) -> int:
    """Run the study on the cluster of this job; returns the exit code."""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        path = value if equals else after  # one without is for the command to refuse
        inside = bool(path) and Path(path).resolve().is_relative_to(Path.cwd())
        if flag in ("--out", "--figure") and inside:
            sys.stderr.write(f"error: {flag} {path} is inside Ray's copy; wanted a path outside\n")
            return 2
    address = os.environ.get("RAY_ADDRESS")
    given = address is None or any(word.startswith("--address") for word in arguments)
    return run(["balance", *arguments, *([] if given else [f"--address={address}"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
