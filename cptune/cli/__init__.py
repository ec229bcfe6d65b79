"""The command line, the only printer: JSON to stdout alone, messages to stderr, exact exit codes.

Exit 0 done, 1 the run failed or nothing fits, 2 bad input or usage, 130 after Ctrl-C. A module
holds related commands; what a command needs is imported inside it, so that `--help` stays instant.
"""

from cptune.cli import (
    balance,
    curve,
    drill,
    inventory,
    planning,
    recipe,
    replay,
    report,
    sweep,
    trace,
    verify,
)
from cptune.cli.exits import main, run

__all__ = [
    "balance",
    "curve",
    "drill",
    "inventory",
    "main",
    "planning",
    "recipe",
    "replay",
    "report",
    "run",
    "sweep",
    "trace",
    "verify",
]
