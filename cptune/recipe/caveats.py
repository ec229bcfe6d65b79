"""What the environment of the ranks says against the figures of a sweep, in sentences."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cptune.domain.environment import RankEnvironment, places_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Distortion:
    """Values of a variable that make a trial slower than training, and who says so."""

    values: tuple[str, ...]  # lower case
    effect: str
    source: str


def caveats_of(environment: RankEnvironment) -> tuple[str, ...]:
    """Which variables of the ranks distort the timing, and in which the ranks differ."""
    return (*_why_distorted(environment), *environment.why_differing())


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
