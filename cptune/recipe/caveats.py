"""What speaks against the figures of a sweep, in sentences: what they were measured under."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cptune.domain.environment import RankEnvironment, places_text
from cptune.domain.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Distortion:
    """Values of a variable that make a trial slower than training, and who says so."""

    values: tuple[str, ...]  # lower case
    effect: str
    source: str


def caveats_of(environment: RankEnvironment, *, versions: RankEnvironment) -> tuple[str, ...]:
    """Which variables of the ranks distort the timing, and in what the ranks differ."""
    differing = (*environment.why_differing(), *versions.why_differing())
    return (*_why_distorted(environment), *differing)


def why_other_execution(trials: Sequence[Trial], execution: str) -> tuple[str, ...]:
    """How many trials of a run that was resumed ran under another execution fingerprint."""
    odd = [one.execution_fingerprint for one in trials if one.execution_fingerprint != execution]
    if not odd:
        return ()
    prints = ", ".join(sorted({one[:12] for one in odd}))
    return (
        f"{len(odd)} of {len(trials)} trials ran under another execution fingerprint ({prints}, "
        f"now {execution[:12]}): the topology, a version or the ranks' environment has changed",
    )


@cache
def read_distortions() -> Mapping[str, Distortion]:
    """The variables that are known to distort timing, by name; from distorting.toml."""
    text = resources.files("cptune.recipe").joinpath("distorting.toml").read_text(encoding="utf-8")
    return {
        name: Distortion(
            values=tuple(value.lower() for value in row["values"]),
            effect=row["effect"],
            source=row["source"],
        )
        for name, row in tomllib.loads(text).items()
    }


def _why_distorted(environment: RankEnvironment) -> list[str]:
    found: list[str] = []
    for name, row in read_distortions().items():
        places: dict[str, list[str]] = {}
        for place, value in environment.of(name).items():
            if value is not None and value.lower() in row.values:
                places.setdefault(value, []).append(place)
        for value, names in places.items():
            where = "the ranks" if names == [""] else places_text(names)
            found.append(f"{where} ran with {name}={value}, which distorts timing: {row.effect}")
    return found
