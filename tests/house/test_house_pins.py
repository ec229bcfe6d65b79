"""constraints.txt pins everything that an install of the project brings, once and exactly."""

import re
import tomllib
from collections.abc import Callable, Iterable
from importlib import metadata

from house_sources import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# what a torch build needs depends on the build: the CUDA ones bring nvidia-* and triton
NOT_FOLLOWED = {"torch"}


def pins_in(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    matches = [PIN.fullmatch(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    names = [canonicalize_name(match[1]) for match in matches if match]
    assert len(names) == len(set(names)), "pinned twice"
    return dict(zip(names, (match[2] for match in matches if match), strict=True))


def unpinned(
    wanted: Iterable[str], pins: dict[str, str], requires: Callable[[str], list[str]]
) -> list[str]:
    """Requirements, direct or not, that no pin answers."""
    found, seen = [], set()
    queue = [Requirement(line) for line in wanted]
    while queue:
        need = queue.pop()
        name = canonicalize_name(need.name)
        version = pins.get(name)
        if version is None or not need.specifier.contains(version, prereleases=True):
            found.append(f"{need} (pinned: {version})")
        if version is not None and (key := (name, frozenset(need.extras))) not in seen:
            seen.add(key)
            queue += [r for r in map(Requirement, requires(name)) if applies(r, need.extras)]
    return found


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": e}) for e in ["", *extras])


def installed_requires(name: str) -> list[str]:
    try:
        return [] if name in NOT_FOLLOWED else metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # the build backend lives in a build of its own
        return []


def test_everything_an_install_brings_is_pinned():
    pins = pins_in((ROOT / "constraints.txt").read_text())
    wanted = [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["dependency-groups"]["dev"],
        *PYPROJECT["build-system"]["requires"],
        "pip>=25.3",  # --group and --build-constraint
    ]
    assert unpinned(wanted, pins, installed_requires) == []


def test_an_unpinned_requirement_is_found_through_an_extra_and_a_marker():
    tree = {"ray": ["grpcio; extra == 'default'", "tomli; python_version < '3'", "click>=8"]}
    pins = {"ray": "2.60.0", "click": "7.0"}
    assert unpinned(["ray[default]>=2"], pins, lambda name: tree.get(name, [])) == [
        "click>=8 (pinned: 7.0)",
        'grpcio; extra == "default" (pinned: None)',
    ]


def test_torch_is_pinned_without_a_local_suffix():
    assert re.search(r"^torch==[0-9.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
