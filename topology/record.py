"""Strict JSON for frozen dataclasses: what is written reads back equal, what is odd is refused.

Every refusal names the path, the value seen and what was wanted, because people edit these files.
"""

import json
import math
import types
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from reprlib import Repr
from typing import ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from topology.errors import TopologyError
from topology.words import suggestion

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_Noun = TypeVar("_Noun")
_SCALARS: Mapping[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
}


class Record:
    """A frozen noun that is one JSON object, field by field."""

    __slots__ = ()

    optional: ClassVar[tuple[str, ...]] = ()  # may be absent in JSON; read as the default
    derived: ClassVar[tuple[str, ...]] = ()  # properties that JSON shows beside the fields

    def to_json(self) -> dict[str, object]:
        """The noun as plain dicts, lists, text, numbers and null."""
        shown = {
            name: _plain(getattr(self, name), hint=hint)
            for name, hint in _hints(type(self)).items()
        }
        return shown | {name: _derived(getattr(self, name)) for name in self.derived}

    @classmethod
    def from_json(cls, value: object, *, path: str = "") -> Self:
        """Read the noun from parsed JSON.

        Args:
            value: What `json.loads` gave.
            path: Where `value` stands in the document, for messages.

        Raises:
            TopologyError: A field is unknown, missing, of the wrong type, or contradicts another.
        """
        hints = _hints(cls)
        build: Callable[..., Self] = cls
        names = [*hints, *cls.derived]
        fields = read_object(value, path=path, names=names, optional=cls.optional)
        facts = {
            name: read_value(fields[name], path=join(path, name), hint=hint)
            for name, hint in hints.items()
            if name in fields
        }
        noun = build_noun(build, path=path, facts=facts)
        for name in cls.derived:
            wanted = _derived(getattr(noun, name))
            if fields[name] != wanted:
                raise refusal(join(path, name), fields[name], f"{wanted!r}, which its facts give")
        return noun


def build_noun(build: Callable[..., _Noun], *, path: str, facts: Mapping[str, object]) -> _Noun:
    """Build a noun; what breaks its own rules is told with the path.

    Raises:
        TopologyError: The facts break a rule of the noun.
    """
    try:
        return build(**facts)
    except ValueError as exc:
        raise TopologyError(f"{path or 'document'}: {exc}") from exc


def join(path: str, name: str) -> str:
    """The path of a field of the object at `path`."""
    return f"{path}.{name}" if path else name


def refusal(path: str, value: object, wanted: str) -> TopologyError:
    """The error for one value that is not what was wanted."""
    return TopologyError(f"{path or 'document'}: saw {_SHORT.repr(value)}, wanted {wanted}")


def read_object(
    value: object, *, path: str, names: Iterable[str], optional: Iterable[str] = ()
) -> Mapping[str, object]:
    """The object at `path`, which has exactly the named fields; `optional` ones may be absent.

    Raises:
        TopologyError: It is no object, or a field is unknown or missing.
    """
    known = tuple(names)
    if not isinstance(value, dict):
        raise refusal(path, value, "an object")
    fields = {str(name): field for name, field in value.items()}
    unknown = sorted(fields.keys() - set(known))
    if unknown:
        seen = f"the unknown field {join(path, unknown[0])}"
        raise TopologyError(f"{path or 'document'}: saw {seen}, wanted only {', '.join(known)}")
    missing = [name for name in known if name not in fields and name not in set(optional)]
    if missing:
        raise TopologyError(
            f"{path or 'document'}: {join(path, missing[0])} is missing: "
            f"saw {', '.join(fields) or 'no fields'}, wanted {', '.join(known)}"
        )
    return fields


def at_least(**bounds: tuple[float | None, float]) -> None:
    """Check the numbers of a noun: name=(value, least); None is unknown and passes.

    Raises:
        ValueError: A value is below its least, or not finite.
    """
    for name, (value, least) in bounds.items():
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name}: saw {value}, wanted {least} or more")


def once(what: str, values: Iterable[object]) -> None:
    """Check that no value occurs twice.

    Raises:
        ValueError: One does.
    """
    seen = set[object]()
    for value in values:
        if value in seen:
            raise ValueError(f"{what}: saw {value!r} twice, wanted each once")
        seen.add(value)


def canonical_json(value: object) -> str:
    """One text for equal facts: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=64)
def _hints(noun: type[Record]) -> Mapping[str, object]:
    return {n: h for n, h in get_type_hints(noun).items() if get_origin(h) is not ClassVar}


def _derived(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _derived(item) for key, item in value.items()}
    return [_derived(item) for item in value] if isinstance(value, tuple) else value


def _plain(value: object, *, hint: object) -> object:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item, hint=get_args(hint)[0]) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, int) and hint == float | None:
        return float(value)  # 50 and 50.0 are one fact, so they must be one text
    return value


def read_value(value: object, *, path: str, hint: object) -> object:
    """Read one field, of the type `hint` says.

    Raises:
        TopologyError: It is of another type.
    """
    if isinstance(hint, types.UnionType):
        inner = next(option for option in get_args(hint) if option is not type(None))
        return None if value is None else _read_one(value, path=path, hint=inner, or_null=True)
    return _read_one(value, path=path, hint=hint, or_null=False)


def _read_one(value: object, *, path: str, hint: object, or_null: bool) -> object:
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise refusal(path, value, "a list")
        item_hint = get_args(hint)[0]
        return tuple(
            read_value(item, path=f"{path}[{position}]", hint=item_hint)
            for position, item in enumerate(value)
        )
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value, path=path)
    suffix = " or null" if or_null else ""
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        words = [member.value for member in hint]
        if not isinstance(value, str) or value not in words:
            near = suggestion(value, words) if isinstance(value, str) else ""
            raise refusal(path, value, f"one of {', '.join(words)}{suffix}{near}")
        return hint(value)
    return _read_scalar(value, path=path, hint=hint, suffix=suffix)


def _read_scalar(value: object, *, path: str, hint: object, suffix: str) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
    elif type(value) is hint:
        return value
    raise refusal(path, value, f"{_SCALARS[hint]}{suffix}")
