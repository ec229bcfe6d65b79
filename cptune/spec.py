"""sweep.toml in, `SweepSpec` out: the only importer of pydantic.

Every problem of a file is reported at once, each with its path and its line. Types are strict:
"8" is no number. Unknown keys are refused.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeGuard, get_args, get_type_hints

import tomli_w
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from cptune.domain.aliases import meant
from cptune.domain.study import SweepSpec
from cptune.domain.workload import preset_fields
from cptune.errors import SpecError
from cptune.spec_paths import with_whole_paths
from topology.inputs import cannot_read

QUICKSTART = "quickstart"
_MISSING = "missing, wanted a value"
_Loc = tuple[int | str, ...]


def _forbid_unknown(noun: type) -> None:
    with_config(ConfigDict(extra="forbid", strict=True))(noun)
    for hint in get_type_hints(noun).values():
        if is_dataclass(hint) and isinstance(hint, type):
            _forbid_unknown(hint)


_forbid_unknown(SweepSpec)
_ADAPTER = TypeAdapter(SweepSpec)


def load(path: Path) -> SweepSpec:
    """Read a sweep.toml; `name` defaults to the file's own, and its paths are relative to it.

    Raises:
        SpecError: when the file cannot be read, is not TOML, or breaks a rule.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(cannot_read(path, exc), hint="wanted a sweep.toml") from exc
    spec = parse(text, source=str(path), default_name=path.stem)
    locate = partial(_located, str(path), _key_lines(text))
    return with_whole_paths(spec, folder=path.parent, locate=locate)


def load_quickstart(name: str = QUICKSTART) -> SweepSpec:
    """The built-in spec of `cptune sweep` without SPEC, under the given name."""
    text = resources.files("cptune").joinpath("quickstart.toml").read_text(encoding="utf-8")
    return parse(text, source="--name", default_name=name)


def parse(text: str, *, source: str, default_name: str) -> SweepSpec:
    """Parse the text of a sweep.toml.

    Raises:
        SpecError: with one line for each problem, naming path, line and value.
    """
    try:
        data = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as exc:  # deep nests and endless numbers are no TOML of ours
        raise SpecError(f"{source} is not TOML: {exc}") from exc
    data.setdefault("name", default_name)
    lines = _key_lines(text)
    problem = _fill_preset(data)
    problems = [_located(source, lines, ("model", "preset"), problem)] if problem else []
    for loc, message in _all_problems(data):
        # What an unknown preset would have filled in is no problem of its own.
        if not (problem and loc[0] == "model" and message == _MISSING):
            problems.append(_located(source, lines, loc, message))
    if problems:
        raise SpecError("\n".join(problems))
    return _ADAPTER.validate_json(json.dumps(data, default=str))


def from_tables(tables: Mapping[str, object]) -> SweepSpec:
    """The spec whose tables these are, as plain values; what a table lacks has its default.

    Raises:
        SpecError: with one line for each problem, naming path and value.
    """
    data = json.loads(json.dumps(_without_none(dict(tables))))
    problems = [
        f"{'.'.join(map(str, loc or ('name',)))} | {message}"
        for loc, message in _all_problems(data)
    ]
    if problems:
        raise SpecError("\n".join(problems))
    return _ADAPTER.validate_json(json.dumps(data))


def _all_problems(data: dict[str, Any]) -> list[tuple[_Loc, str]]:
    """Problems of types and keys, and those of the nouns' rules that the former would hide."""
    found: list[tuple[_Loc, str]] = []
    aside: set[str] = set()
    data = copy.deepcopy(data)
    while True:
        try:
            _ADAPTER.validate_json(json.dumps(data, default=str))
            return found
        except ValidationError as exc:
            errors = [(error["loc"], _message(dict(error))) for error in exc.errors()]
        new = [
            (loc, message)
            for loc, message in errors
            if (loc, message) not in found and not any(name in message for name in aside)
        ]
        if not new:
            return found
        found += new
        aside |= {_put_aside(data, loc) for loc, _ in new if len(loc) > 1}


def _put_aside(data: dict[str, Any], loc: _Loc) -> str:
    """Replace a value at fault by one that no rule minds; returns the name of its key."""
    table, key = data.get(str(loc[0])), str(loc[1])
    if isinstance(table, dict):
        hint = get_type_hints(get_type_hints(SweepSpec)[str(loc[0])]).get(key)
        if hint is int:
            table[key] = 1
        else:
            table.pop(key, None)
    return key


def write_toml(spec: SweepSpec) -> str:
    """The spec as TOML with every default written out; `parse` gives the same spec back."""
    return tomli_w.dumps(json.loads(json.dumps(_without_none(asdict(spec)))))


def spec_changes(before: SweepSpec, after: SweepSpec) -> list[str]:
    """Every field that differs, as `path: old -> new`."""
    old, new = _flat(asdict(before)), _flat(asdict(after))
    return [
        f"{path}: {_shown(old.get(path))} -> {_shown(new.get(path))}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def _shown(value: object) -> str:
    """A value as a spec has it."""
    return "left out" if value is None else json.dumps(value)


def _fill_preset(data: dict[str, Any]) -> str | None:
    model = data.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return None
    try:
        data["model"] = preset_fields(str(model["preset"])) | model
    except ValueError as exc:
        return str(exc)
    return None


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        plain = value.value if isinstance(value, StrEnum) else value
        found |= _flat(value, f"{path}.") if isinstance(value, dict) else {path: plain}
    return found


def _message(error: dict[str, Any]) -> str:
    kind, seen = error["type"], error.get("input")
    text = str(error["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return text
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown key{_did_you_mean(error['loc'])}"
    if kind in ("missing", "missing_argument"):
        return _MISSING
    if kind == "enum":
        return f"{text[0].lower()}{text[1:]}, not {seen!r}{_nearest_word(error['loc'], seen)}"
    return f"{text[0].lower()}{text[1:]}, not {seen!r}"


def _did_you_mean(loc: tuple[int | str, ...]) -> str:
    noun = _noun_at(loc)
    if noun is None:
        return ""
    known = [field.name for field in fields(noun)]
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _nearest_word(loc: tuple[int | str, ...], seen: object) -> str:
    """The legal word that is spelt nearest; a list's are those of its items."""
    noun = _noun_at(loc)
    hint = None if noun is None else get_type_hints(noun).get(_last_name(loc))
    words = next((one for one in (hint, *get_args(hint)) if _is_words(one)), None)
    return meant(seen, words or ())


def _is_words(hint: object) -> TypeGuard[type[StrEnum]]:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def _last_name(loc: tuple[int | str, ...]) -> str:
    return next(part for part in reversed(loc) if isinstance(part, str))


def _noun_at(loc: tuple[int | str, ...]) -> type | None:
    """The noun that holds the key of an error; None where there is none."""
    noun: type = SweepSpec
    for name in loc[: loc.index(_last_name(loc))]:
        hint = get_type_hints(noun).get(str(name))
        if not isinstance(hint, type) or not is_dataclass(hint):
            return None
        noun = hint
    return noun


def _located(source: str, lines: dict[str, int], loc: tuple[int | str, ...], message: str) -> str:
    loc = loc or ("name",)  # the only rule of the whole spec is that of its name
    path = ".".join(str(part) for part in loc)
    names = [part for part in loc if isinstance(part, str)]
    line = next(
        (
            lines[".".join(names[:length])]
            for length in range(len(names), 0, -1)
            if ".".join(names[:length]) in lines
        ),
        None,
    )
    place = source if line is None else f"{source}:{line}"
    return f"{place}: {path} | {message}"


def _key_lines(text: str) -> dict[str, int]:
    """Where each table and key of a TOML text stands; good for messages, no parser."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([\w.\-]+)\s*\]+", line):
            table = header.group(1)
            found.setdefault(table, number)
        elif key := re.match(r"\s*([\w.\-]+)\s*=", line):
            found.setdefault(f"{table}.{key.group(1)}" if table else key.group(1), number)
    return found
