"""Paths in a sweep.toml: relative to its folder, kept whole, so that they hold anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cptune.domain.checks import is_file
from cptune.domain.study import SweepSpec
from cptune.domain.workload import FULL_LENGTHS
from cptune.errors import SpecError

#: A message with the file, the line and the path of a key.
Locate = Callable[[tuple[str, ...], str], str]

_SQLITE_FILE = re.compile(r"^(sqlite(?:\+\w+)?:///)(?![/:]|file:)(.+)$")


def with_whole_paths(spec: SweepSpec, *, folder: Path, locate: Locate) -> SweepSpec:
    """The spec with its inventory, its file of lengths and its SQLite file by their whole paths.

    Whether the first and the last are there is for who reads them to say.

    Args:
        spec: As it was read.
        folder: Of the file that it was read from.
        locate: Adds to a message where its key stands.

    Raises:
        SpecError: when the lengths are no file and no distribution.
    """
    study = _SQLITE_FILE.sub(lambda url: url[1] + _whole(folder / url[2]), spec.storage.study)
    inventory = spec.cluster.topology
    whole = None if inventory is None else _whole(folder / inventory)
    return replace(
        _with_lengths(spec, folder, locate),
        cluster=replace(spec.cluster, topology=whole),
        storage=replace(spec.storage, study=study),
    )


def _whole(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a NUL
        return str(path)


def _with_lengths(spec: SweepSpec, folder: Path, locate: Locate) -> SweepSpec:
    lengths = spec.workload.lengths
    if lengths == FULL_LENGTHS or Path(lengths).is_absolute():
        return spec
    path = folder / lengths
    if is_file(path):
        return replace(spec, workload=replace(spec.workload, lengths=_whole(path)))
    from cptune.balance.distributions import (  # brings numpy
        is_distribution,
        known_names,
        nearest_lengths,
    )

    if is_distribution(lengths):
        return spec
    near = nearest_lengths(lengths, folder, also=FULL_LENGTHS)
    seen = f"{lengths!r} is no file and no distribution{near}"
    raise SpecError(
        locate(("workload", "lengths"), seen),
        hint=f'wanted "{FULL_LENGTHS}", a file beside the spec or {", ".join(known_names())}',
    )
