"""The edges of a probe into Parquet; those of trials are in the ledger."""

from __future__ import annotations

from pathlib import Path

from cptune.domain.probe import Probe
from cptune.store import schema
from cptune.store.files import write_durably
from cptune.store.ledger import encode


def write_probe(path: Path, probe: Probe) -> None:
    """Keep the measured edges.

    Raises:
        LedgerError: when the file cannot be written.
    """
    write_durably(path, encode(probe.rows(), schema.PROBED_EDGES))
