"""The event log names its file when the system refuses it."""

from pathlib import Path

import pytest

from cptune.logs import EventLog


def test_a_full_disk_names_the_file():
    log = EventLog(Path("/dev/full"))

    for refused in (lambda: log.write("begun"), log.close):
        with pytest.raises(OSError, match="cannot write: No space left on device: '/dev/full'"):
            refused()
