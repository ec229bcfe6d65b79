"""The parts of a kept recipe as nouns again: every field of its own type, none left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from cptune.domain.candidate import Candidate, candidate_from_axes
from cptune.domain.environment import RankEnvironment
from cptune.domain.layout import Coordinates
from cptune.domain.outcome import Measurement
from cptune.domain.placement import Device, Placement, RankPlace
from cptune.domain.reported import EXPOSED_FIELDS, Reported
from cptune.domain.timeline import ABLATION, Exposed
from topology.errors import TopologyError
from topology.record import join, read_object, read_value, refusal

_Noun = TypeVar("_Noun")
#: Of `measurement` beside the fields of the noun: what follows from them, or was reported.
_BESIDE = (
    "exposed_share",
    "capacity_bytes",
    "exposures",
    "steps_s",
    "batch_hash",
    "cross_checked",
)
_MESH = ("rank", "node", "gpu_uuid", "tp", "cp", "dp", "pp")


def read_noun(
    noun: type[_Noun],
    value: object,
    *,
    path: str,
    beside: Iterable[str] = (),
    given: Mapping[str, object] | None = None,
) -> _Noun:
    """A dataclass from its JSON; what has a default may be absent, as in older files.

    Args:
        noun: Its type.
        value: What `json.loads` gave.
        path: Where it stands in the file.
        beside: Names that may stand there too.
        given: Fields that do not stand there.

    Raises:
        TopologyError: naming the place, the value seen and what was wanted.
        ValueError: when it breaks a rule of the noun.
    """
    hints, given = get_type_hints(noun), given or {}
    assert is_dataclass(noun)
    shown = [one for one in fields(noun) if one.name not in given]
    optional = [
        one.name
        for one in shown
        if one.default is not MISSING or one.default_factory is not MISSING
    ]
    names = [one.name for one in shown]
    found = read_object(value, path=path, names=[*names, *beside], optional=[*optional, *beside])
    facts = {
        name: _read(found[name], path=join(path, name), hint=hints[name])
        for name in names
        if name in found
    }
    build: Callable[..., _Noun] = noun
    return build(**facts, **given)


def read_list(noun: type[_Noun], value: object, *, path: str) -> tuple[_Noun, ...]:
    """Dataclasses from a JSON list.

    Raises:
        TopologyError: naming the place, the value seen and what was wanted.
    """
    rows = enumerate(_rows(value, path))
    return tuple(read_noun(noun, row, path=f"{path}[{index}]") for index, row in rows)


def read_table(value: object, *, path: str) -> Mapping[str, Any]:
    """A JSON object of any content.

    Raises:
        TopologyError: when it is none.
    """
    if not isinstance(value, dict):
        raise refusal(path, value, "an object")
    return value


def _rows(value: object, path: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise refusal(path, value, "a list")
    return [read_table(row, path=f"{path}[{index}]") for index, row in enumerate(value)]


def _read(value: object, *, path: str, hint: object) -> object:
    inner = [one for one in (hint, *get_args(hint)) if is_dataclass(one)]
    if inner and isinstance(inner[0], type):
        return None if value is None else read_noun(inner[0], value, path=path)
    return read_value(value, path=path, hint=hint)


def read_candidate(value: object) -> Candidate:
    """The candidate whose axes `layout` holds.

    Raises:
        KeyError: when an axis is missing.
        TypeError: when one is of another kind.
        ValueError: when one has no legal value.
    """
    axes = dict(read_table(value, path="layout"))
    axes.pop("accumulation", None)
    candidate = candidate_from_axes(axes)
    odd = [name for name, seen in axes.items() if candidate.axes().get(name) != seen]
    if odd:
        raise TypeError(f"{odd[0]}: saw {axes[odd[0]]!r}, wanted what the axis {odd[0]} may be")
    return candidate


def read_placement(value: object, candidate: Candidate) -> Placement:
    """The placement whose mesh this is, rank by rank where the layout puts them.

    Raises:
        TopologyError: when a row is none, or stands elsewhere than its layout says.
    """
    rows = value if isinstance(value, list) else []
    world = candidate.layout.world_size
    if len(rows) != world:
        raise TopologyError(f"mesh: saw {len(rows)} ranks, wanted {world}, as the layout has")
    return Placement(ranks=tuple(_place(row, rank, candidate) for rank, row in enumerate(rows)))


def _place(row: object, rank: int, candidate: Candidate) -> RankPlace:
    path = f"mesh[{rank}]"
    found = read_object(row, path=path, names=_MESH)
    at = candidate.layout.coordinates(rank)
    wanted = {"rank": rank, "tp": at.tp, "cp": at.cp, "dp": at.dp, "pp": at.pp}
    for name, size in wanted.items():
        if found[name] != size:
            raise refusal(join(path, name), found[name], f"{size}, as the layout has it")
    uuid = read_value(found["gpu_uuid"], path=join(path, "gpu_uuid"), hint=str | None)
    device = Device(
        node=str(read_value(found["node"], path=join(path, "node"), hint=str)),
        kind="cpu" if uuid is None else "cuda",
        index=rank,
        uuid=None if uuid is None else str(uuid),
    )
    return RankPlace(
        rank=rank, device=device, at=Coordinates(tp=at.tp, cp=at.cp, dp=at.dp, pp=at.pp)
    )


def read_measurement(value: object) -> Measurement:
    """The measurement, without the reports of its ranks.

    Raises:
        TopologyError: naming what is odd.
    """
    return read_noun(Measurement, value, path="measurement", beside=_BESIDE, given={"ranks": ()})


def read_reported(value: object, edges: object) -> Reported:
    """What the ranks reported, in sum; less in files from before all of it was kept.

    Raises:
        TopologyError: naming what is odd.
    """
    table = read_table(value, path="measurement")
    steps = read_value(table.get("steps_s", []), path="measurement.steps_s", hint=tuple[float, ...])
    digest = read_value(table.get("batch_hash"), path="measurement.batch_hash", hint=str | None)
    exposures = tuple(
        _exposed(row, path=f"measurement.exposures[{index}]")
        for index, row in enumerate(_rows(table.get("exposures", []), "measurement.exposures"))
    )
    tried = any(one.method == ABLATION and one.exposed_s is not None for one in exposures)
    assert isinstance(steps, tuple)
    return Reported(
        steps_s=steps,
        batch_hash=None if digest is None else str(digest),
        exposures=exposures,
        cross_checked=bool(table.get("cross_checked", tried)),
        ring_edges=tuple(dict(one) for one in _rows(edges or [], "ring_edges")),
    )


def read_environment(value: object) -> RankEnvironment:
    """The environment of the ranks; an empty one in files from before it was kept.

    Raises:
        TopologyError: when it is no table of tables.
    """
    if value is None:
        return RankEnvironment()
    found = read_object(value, path="environment", names=("shared", "differing"))
    return RankEnvironment(
        shared=read_table(found["shared"], path="environment.shared"),
        differing=read_table(found["differing"], path="environment.differing"),
    )


def _exposed(row: object, *, path: str) -> Exposed:
    found = read_object(row, path=path, names=EXPOSED_FIELDS)
    hints = get_type_hints(Exposed)
    facts: dict[str, Any] = {
        name: read_value(found[name], path=join(path, name), hint=hints[name])
        for name in EXPOSED_FIELDS
    }
    return Exposed(layer=None, whole=True, **facts)
