"""`ray job submit --working-dir . -- python -m jobs.drill [NAME] [flags of cptune drill]`.

The failures are provoked on the nodes of the cluster.
"""

import os
import sys

from cptune.cli import run


def main(arguments: list[str]) -> int:
    """Drill on the cluster of this job; returns the exit code."""
    address = os.environ.get("RAY_ADDRESS")
    given = address is None or any(word.startswith("--address") for word in arguments)
    return run(["drill", *arguments, *([] if given else [f"--address={address}"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
