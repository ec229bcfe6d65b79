"""Slurm topology.conf and topology.yaml: switch trees and blocks."""

import re
from collections.abc import Iterator

from topology.errors import TopologyError
from topology.network import Tier, TierKind
from topology.readers.hostlist import expand_hosts
from topology.readers.reading import Reading, SourceText
from topology.readers.switch_tree import SwitchLine, build_tree
from topology.readers.yaml_subset import Yaml, read_yaml

_PAIR = re.compile(r"([A-Za-z_]+)\s*=\s*(\"[^\"]*\"|\S+)")
_KNOWN = frozenset({"switchname", "blockname", "nodes", "switches", "linkspeed", "blocksizes"})
_COMMENTED = re.compile(r"\s*#\s*(BlockName|SwitchName)\s*=\s*(\S+)", re.IGNORECASE)


def read_slurm_conf(source: SourceText) -> Reading:
    """Read topology.conf.

    Raises:
        TopologyError: A line that is not understood, a wrong host range, a name given twice.
    """
    switches: list[SwitchLine] = []
    blocks: list[Tier] = []
    notes: list[str] = []
    for number, text in _logical_lines(source):
        if match := _COMMENTED.match(text):
            notes.append(f"line {number}: {match.group(2)} is commented out")
        facts = _facts(text.split("#")[0], number=number, source=source)
        if "switchname" in facts:
            switches += _switches(facts, number=number, source=source)
        elif "blockname" in facts:
            hosts = _hosts(facts.get("nodes", ""), number=number, source=source)
            blocks.append(Tier(name=facts["blockname"], kind=TierKind.BLOCK, nodes=hosts))
        elif "blocksizes" in facts:
            notes.append(f"block sizes {facts['blocksizes']}")
    network = build_tree(switches, blocks=blocks, notes=notes, source=source)
    return Reading(source="slurm", kind="slurm topology.conf", network=network)


def _logical_lines(source: SourceText) -> Iterator[tuple[int, str]]:
    """Lines with those that end in a backslash joined."""
    held, first = "", 0
    for number, line in enumerate(source.lines, start=1):
        first = first or number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        yield first, held + line
        held, first = "", 0
    if held:
        yield first, held


def _facts(text: str, *, number: int, source: SourceText) -> dict[str, str]:
    rest = _PAIR.sub("", text).strip()
    facts = {key.lower(): value.strip('"') for key, value in _PAIR.findall(text)}
    unknown = sorted(facts.keys() - _KNOWN)
    if rest or unknown:
        wanted = "SwitchName=, BlockName=, Nodes=, Switches=, LinkSpeed= or BlockSizes="
        raise source.refusal(f"line {number}", saw=rest or unknown[0], wanted=wanted)
    return facts


def _switches(facts: dict[str, str], *, number: int, source: SourceText) -> list[SwitchLine]:
    names = _hosts(facts["switchname"], number=number, source=source)
    if not names:
        raise source.refusal(f"line {number}, SwitchName", saw="", wanted="a name")
    return [
        SwitchLine(
            name=name,
            line=number,
            nodes=_hosts(facts.get("nodes", ""), number=number, source=source),
            switches=_hosts(facts.get("switches", ""), number=number, source=source),
        )
        for name in names
    ]


def _hosts(text: str, *, number: int, source: SourceText) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(expand_hosts(text)))
    except TopologyError as exc:
        raise TopologyError(f"{source.name}: line {number}: {exc}") from exc


def read_slurm_yaml(source: SourceText) -> Reading:
    """Read topology.yaml; of several topologies the cluster's default, or the first.

    Raises:
        TopologyError: As for topology.conf; also a plugin that is not tree, block or flat.
    """
    value = read_yaml(source)
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    if not items or not isinstance(value, list) or len(items) < len(value):
        raise source.refusal("document", saw=type(value).__name__, wanted="a list of topologies")
    chosen = next((item for item in items if item.get("cluster_default") == "true"), items[0])
    others = [str(item.get("topology")) for item in items if item is not chosen]
    notes = [f"topologies left out: {', '.join(others)}"] if others else []
    name = f"topology {chosen.get('topology')}"
    switches: list[SwitchLine] = []
    blocks: list[Tier] = []
    if "tree" in chosen:
        listed = _entries(chosen["tree"], "switches", place=name, source=source)
        switches = [
            line for entry in listed for line in _yaml_switch(entry, place=name, source=source)
        ]
    elif "block" in chosen:
        listed = _entries(chosen["block"], "blocks", place=name, source=source)
        blocks = [_yaml_block(entry, place=name, source=source) for entry in listed]
    elif "flat" in chosen:
        notes.append(f"{name} is flat: no switch is told")
    else:
        seen = ", ".join(chosen)
        raise source.refusal(name, saw=seen, wanted="tree, block or flat")
    network = build_tree(switches, blocks=blocks, notes=notes, source=source)
    return Reading(source="slurm", kind="slurm topology.yaml", network=network)


def _entries(value: Yaml, name: str, *, place: str, source: SourceText) -> list[dict[str, Yaml]]:
    listed = value.get(name) if isinstance(value, dict) else None
    if not isinstance(listed, list):
        raise source.refusal(f"{place}, {name}", saw=listed, wanted="a list")
    entries = [entry for entry in listed if isinstance(entry, dict)]
    if len(entries) < len(listed):
        raise source.refusal(f"{place}, {name}", saw=listed, wanted="a list of maps")
    return entries


def _yaml_switch(entry: dict[str, Yaml], *, place: str, source: SourceText) -> list[SwitchLine]:
    names = yaml_hosts(entry.get("switch"), place=f"{place}, switch", source=source)
    if not names:
        raise source.refusal(f"{place}, switch", saw=entry, wanted="switch: <name>")
    return [
        SwitchLine(
            name=name,
            line=0,
            nodes=yaml_hosts(entry.get("nodes"), place=f"{place}, nodes", source=source),
            switches=yaml_hosts(entry.get("children"), place=f"{place}, children", source=source),
        )
        for name in names
    ]


def _yaml_block(entry: dict[str, Yaml], *, place: str, source: SourceText) -> Tier:
    name = entry.get("block")
    if not isinstance(name, str):
        raise source.refusal(f"{place}, block", saw=entry, wanted="block: <name>")
    nodes = yaml_hosts(entry.get("nodes"), place=f"{place}, nodes", source=source)
    return Tier(name=name, kind=TierKind.BLOCK, nodes=nodes)


def yaml_hosts(value: Yaml, *, place: str, source: SourceText) -> tuple[str, ...]:
    """Host names of a word or a list of words.

    Raises:
        TopologyError: Something else, or a wrong range.
    """
    words = value if isinstance(value, list) else [] if value is None else [value]
    hosts: list[str] = []
    for word in words:
        if not isinstance(word, str):
            raise source.refusal(place, saw=word, wanted="host names")
        try:
            hosts += expand_hosts(word)
        except TopologyError as exc:
            raise TopologyError(f"{source.name}: {place}: {exc}") from exc
    return tuple(dict.fromkeys(hosts))
