"""The marked processes of tests/ray, for tests that kill them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "ray"))
sys.path.append(str(Path(__file__).parents[1] / "unit" / "deploy"))  # a Slurm of one host

from sweep_process import SweepProcesses, sweep_processes


@pytest.fixture
def processes() -> Iterator[SweepProcesses]:
    """Processes of this test; none may be left at its end."""
    with sweep_processes() as made:
        yield made
