"""The command line, the only printer: JSON to stdout alone, messages to stderr, exact exit codes.

Exit 0 done, 1 the run failed or nothing fits, 2 bad input or usage, 130 after Ctrl-C. A module
holds related commands; what a command needs is imported inside it, so that `--help` stays instant.
"""

from cptune.cli import (
    balance,
    curve,
    inventory,
    planning,
    recipe,
    report,
    sweep,
    trace,
    verify,
)
from cptune.cli.exits import main, run

__all__ = [
    "balance",
    "curve",
    "inventory",
    "main",
    "planning",
    "recipe",
    "report",
    "run",
    "sweep",
    "trace",
    "verify",
]
