"""What ranks have by name, variables or versions: where all agree, and where they differ.

What counts is the environment of the ranks, on whatever node they run, and not that of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

PREFIXES = ("NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_", "TORCH_", "PYTORCH_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_DEVICE = "CUDA_VISIBLE_DEVICES"  # of each rank another one; which device it has is in the mesh
_MOST_PLACES = 8  # in a sentence

#: Of one variable: its value by node, or by rank where a node has several; None: it is not set.
Values = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """What the ranks have: the variables that their libraries read, or versions of software.

    `shared` is equal on all; `differing` has each other one by place.

    A place is the name of a node, or "NODE rank RANK" where the ranks of one node differ.
    """

    shared: Mapping[str, str] = field(default_factory=dict)
    differing: Mapping[str, Values] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As recipe.json keeps it."""
        return asdict(self)

    def of(self, name: str) -> Values:
        """The values of a variable by place; the place is empty where all ranks agree."""
        if name in self.shared:
            return {"": self.shared[name]}
        return self.differing.get(name, {})

    def texts(self) -> dict[str, str]:
        """Each name in words: its value, or its values with their places."""
        differing = {name: _by_value(values) for name, values in self.differing.items()}
        return {**self.shared, **differing}

    def why_differing(self) -> list[str]:
        """One sentence for each variable in which the ranks differ."""
        return [
            f"the ranks differ in {name}: {_by_value(values)}"
            for name, values in self.differing.items()
        ]


def told_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are kept of a process, by name; none whose name speaks of a secret."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if name.startswith(PREFIXES)
        and name != _DEVICE
        and not any(word in name.upper() for word in _SECRET)
    }


def join_environments(ranks: Sequence[tuple[str, Mapping[str, str]]]) -> RankEnvironment:
    """What all ranks have, by rank: the name of its node, and its variables."""
    shared: dict[str, str] = {}
    differing: dict[str, Values] = {}
    for name in sorted({name for _, variables in ranks for name in variables}):
        values = [variables.get(name) for _, variables in ranks]
        if values[0] is not None and len(set(values)) == 1:
            shared[name] = values[0]
        else:
            differing[name] = _by_place([node for node, _ in ranks], values)
    return RankEnvironment(shared=shared, differing=differing)


def _by_place(nodes: Sequence[str], values: Sequence[str | None]) -> Values:
    of_node: dict[str, set[str | None]] = {}
    for node, value in zip(nodes, values, strict=True):
        of_node.setdefault(node, set()).add(value)
    return {
        node if len(of_node[node]) == 1 else f"{node} rank {rank}": value
        for rank, (node, value) in enumerate(zip(nodes, values, strict=True))
    }


def _by_value(values: Values) -> str:
    places: dict[str, list[str]] = {}
    for place, value in values.items():
        places.setdefault("unset" if value is None else repr(value), []).append(place)
    return "; ".join(f"{value} on {places_text(names)}" for value, names in places.items())


def places_text(places: Sequence[str]) -> str:
    """Places for people, of very many the first ones."""
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return ", ".join(places[:_MOST_PLACES]) + more
