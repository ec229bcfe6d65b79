"""Document lengths by name: `lognormal(mean=3000, sigma=0.8)`, `prolong` and others."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from cptune.balance.work import LONGEST, Reals, Tokens, published
from cptune.errors import SpecError
from topology.inputs import file_meant
from topology.words import slip_of, suggestion

_LARGEST = 1e12  # of any parameter, in tokens or without unit
_TABLE = 1 << 20  # lengths at as many evenly spaced quantiles
_CALL = re.compile(r"\s*([a-z][a-z0-9-]*)\s*(?:\((.*)\))?\s*")
_PARAMETERS = {
    "lognormal": ("mean", "sigma"),
    "pareto": ("min", "alpha"),
    "quantiles": (),
    "fixed": ("tokens",),
}
_ABOVE = {"alpha": 0.0, "sigma": 0.0}  # every other parameter counts tokens: 1 or more


@dataclass(frozen=True, slots=True)
class Distribution:
    """Lengths at evenly spaced quantiles; a draw picks one of them."""

    name: str
    table: Tokens

    @property
    def mean_tokens(self) -> float:
        """Tokens of a document, on average."""
        return float(self.table.mean())

    def draw(self, count: int, rng: np.random.Generator) -> Tokens:
        """Independent documents."""
        return self.table[rng.integers(0, len(self.table), size=count)]

    def chunks(self, total_tokens: int, *, seed: int) -> Iterator[Tokens]:
        """Independent documents of at least so many tokens, some thousands at a time."""
        rng = np.random.default_rng(seed)
        left = total_tokens
        while left > 0:
            drawn = self.draw(min(_TABLE, 1024 + int(left / self.mean_tokens)), rng)
            left -= int(drawn.sum())
            yield drawn


def is_distribution(text: str) -> bool:
    """Whether this names a distribution, well or badly, rather than a file."""
    found = _CALL.fullmatch(text)
    return found is not None and found[1] in {*_PARAMETERS, *published("lengths")}


def known_names() -> list[str]:
    """What `read_distribution` takes, as people write it."""
    wanted = _PARAMETERS | {"quantiles": ("0", "0.5", "1")}
    calls = [f"{name}({', '.join(f'{key}=..' for key in keys)})" for name, keys in wanted.items()]
    return [*published("lengths"), *calls]


def nearest_lengths(text: str, folder: Path, *, also: str | None = None) -> str:
    """The end of a refusal of what is no file and no distribution: the nearest that is one.

    A file only where it was plausibly meant.
    """
    found = _CALL.fullmatch(text)
    seen = found[1] if found else Path(text).name
    names = [*published("lengths"), *_PARAMETERS, *filter(None, [also])]
    file = file_meant(folder / text)
    if file is None or slip_of(seen, names) is not None:
        return suggestion(seen, names)
    return f", did you mean '{Path(text).with_name(file.name)}'?"


def read_distribution(text: str) -> Distribution:
    """The distribution that a text names.

    `lognormal(mean, sigma)`: mean in tokens, sigma of ln. `pareto(min, alpha)`: a share of
    (min / L)^alpha is longer than L. `quantiles(0=1, 0.5=3227, 1=124913)`: geometric between them.
    `fixed(tokens)`. Each takes `max=` too, to which longer documents are cut.

    Raises:
        SpecError: when a name, parameter or value is wrong.
    """
    found = _CALL.fullmatch(text)
    if not found or not is_distribution(text):
        raise SpecError(f"lengths is {text!r}; wanted a file or {', '.join(known_names())}")
    name, given = found[1], _parameters(text, found[2] or "")
    longest = given.pop("max", float(LONGEST))
    if name in published("lengths"):
        inverse = _published(text, name, given)
    elif name == "quantiles":
        inverse = _quantiles(text, given)
    else:
        inverse = _parametric(text, name, given)
    middles = (np.arange(_TABLE) + 0.5) / _TABLE
    return Distribution(
        text, np.clip(np.rint(inverse(middles)), 1, min(longest, LONGEST)).astype(np.int64)
    )


def _parameters(text: str, inside: str) -> dict[str, float]:
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in inside.split(","))):
        key, _, value = (word.strip() for word in part.partition("="))
        try:
            given[key] = float(value.replace("_", ""))
        except ValueError as exc:
            raise SpecError(f"lengths {text!r}: {part!r} is not name=number") from exc
        if key == "max" and not given[key] >= 1:
            raise SpecError(f"lengths {text!r}: max is {value}; wanted 1 token or more")
    return given


def _parametric(text: str, name: str, given: Mapping[str, float]) -> Callable[[Reals], Reals]:
    wanted = _PARAMETERS[name]
    if set(given) != set(wanted):
        raise SpecError(
            f"lengths {text!r} has {', '.join(given) or 'no parameters'}; "
            f"wanted {' and '.join(wanted)}, and max if any"
        )
    for key, value in given.items():
        enough = _ABOVE[key] < value if key in _ABOVE else value >= 1
        if not enough or value > _LARGEST:
            least = "more than 0" if key in _ABOVE else "1 token or more"
            raise SpecError(
                f"lengths {text!r}: {key} is {value:g}; wanted {least}, and {_LARGEST:g} at most"
            )
    if name == "fixed":
        return lambda share: np.full_like(share, given["tokens"])
    if name == "pareto":
        return lambda share: given["min"] * (1 - share) ** (-1 / given["alpha"])
    mu, sigma = math.log(given["mean"]) - given["sigma"] ** 2 / 2, given["sigma"]
    return lambda share: np.exp(np.minimum(mu + sigma * normal_quantiles(share), 50.0))


def _quantiles(text: str, given: Mapping[str, float]) -> Callable[[Reals], Reals]:
    try:
        knots = sorted((float(share), tokens) for share, tokens in given.items())
    except ValueError as exc:
        raise SpecError(f"lengths {text!r}: a share is not a number from 0 to 1") from exc
    shares, lengths = [share for share, _ in knots], [tokens for _, tokens in knots]
    if len(knots) < 2 or shares[0] != 0 or shares[-1] != 1 or lengths != sorted(lengths):
        raise SpecError(f"lengths {text!r}: wanted lengths that rise from share 0 to share 1")
    if not 1 <= lengths[0] <= lengths[-1] < float("inf"):
        raise SpecError(f"lengths {text!r}: shortest is {lengths[0]:g}; wanted 1 token or more")
    return lambda share: np.exp(np.interp(share, shares, np.log(lengths)))


def _published(text: str, name: str, given: Mapping[str, float]) -> Callable[[Reals], Reals]:
    if given:
        raise SpecError(f"lengths {text!r} has {', '.join(given)}; {name} takes max alone")
    row = published("lengths")[name]
    shares, lengths = np.array(row["quantiles"]).T
    if row["between"] == "linear":
        return lambda share: np.interp(share, shares, lengths)
    return lambda share: np.exp(np.interp(share, shares, np.log(lengths)))


def normal_quantiles(share: Reals) -> Reals:
    """Standard normal quantiles; between 4,096 exact ones of ln(share / (1 - share)), linear."""
    logit = np.linspace(-30.0, 30.0, 4096)
    exact = [NormalDist().inv_cdf(1 / (1 + math.exp(-one))) for one in logit]
    return np.interp(np.log(share) - np.log1p(-share), logit, exact)
