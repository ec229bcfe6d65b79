"""`ray job submit --working-dir . -- python -m jobs.sweep [SPEC] [flags of cptune sweep]`.

Ray removes its copy of the uploaded directory, so runs go to ~/cptune-runs or to --runs DIR.
"""

import os
import sys
from pathlib import Path

try:
    from cptune.cli import run
except ModuleNotFoundError as exc:
    sys.exit(f"error: {exc}; wanted cptune's dependencies in {sys.executable} of the cluster")

DEFAULT_RUNS = Path.home() / "cptune-runs"


def main(arguments: list[str]) -> int:
    """Run the sweep on the cluster of this job; returns the exit code."""
    address = os.environ.get("RAY_ADDRESS")
    runs = next((word for word in arguments if word.partition("=")[0] == "--runs"), None)
    if runs is None:
        arguments = [*arguments, f"--runs={DEFAULT_RUNS}"]
    words = arguments[-1:] if runs is None else arguments[arguments.index(runs) :]
    path = words[0].partition("=")[2] or "".join(words[1:2])
    if not address:
        return _refuse("RAY_ADDRESS is not set; wanted a run by `ray job submit`")
    if Path(path).resolve().is_relative_to(Path.cwd()):
        return _refuse(f"--runs {path} is inside Ray's copy; wanted a path like {DEFAULT_RUNS}")
    return run(["sweep", *arguments, "--address", address])


def _refuse(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
