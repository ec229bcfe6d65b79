"""How a command names a run that is there: by its name in the runs directory, or by its path."""

from __future__ import annotations

from pathlib import Path

from cptune.errors import SpecError
from topology.words import slip_of


def find_run(run: str, runs: Path) -> Path:
    """The directory of a sweep's run.

    Raises:
        SpecError: when there is none of this name or path, with the nearest name; or it is a curve.
    """
    from cptune.store.curve import ASKED, ROWS

    for path in (runs / run, Path(run)):
        if _holds(path, "trials"):
            return path
        if odd := [name for name in (ROWS, ASKED) if _holds(path, name)]:
            raise SpecError(
                f"run {run!r} is a curve, not a sweep: it holds {odd[0]}",
                hint="`cptune curve SPEC --resume` shows it",
            )
        if _holds(path, "spec.toml"):  # it ended before its first trial
            return path
    names = [path.parent.name for path in sorted(runs.glob("*/trials"))] if runs.is_dir() else []
    near = slip_of(Path(run).name, names)
    raise SpecError(
        f"no run {run!r} in {runs}" + (f", did you mean '{near}'?" if near else ""),
        hint="give the name of a run, or the path of its directory",
    )


def files_of_run(directory: Path) -> list[Path]:
    """Every file of a run, which nothing else may overwrite; none where this holds no run."""
    if not _holds(directory, "spec.toml"):
        return []
    return [one for one in directory.rglob("*") if one.is_file()]


def _holds(path: Path, name: str) -> bool:
    try:
        return (path / name).exists()
    except (OSError, ValueError):  # too long, or a NUL
        return False
