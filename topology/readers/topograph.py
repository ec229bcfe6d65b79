"""What topograph reads and writes: models (YAML), its graph (JSON) and NetQ answers (JSON)."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from topology.network import Network, Tier, TierKind
from topology.nouns import Gpu
from topology.readers.inventory import read_json
from topology.readers.reading import Draft, Reading, SourceText
from topology.readers.slurm import yaml_hosts
from topology.readers.switch_tree import SwitchLine, build_tree
from topology.readers.yaml_subset import Yaml, read_yaml


def read_model(source: SourceText) -> Reading:
    """Read a simulation model: switches, and blocks of nodes with their NVLink domains.

    Raises:
        TopologyError: Outside the YAML subset, or not of this shape.
    """
    value = read_yaml(source)
    if not isinstance(value, dict):
        raise source.refusal("document", saw=value, wanted="switches: and blocks:")
    below = _model_switches(value.get("switches"), source=source)
    blocks = value.get("blocks")
    if blocks is not None and not isinstance(blocks, list):
        raise source.refusal("blocks", saw=blocks, wanted="a list")
    nodes: dict[str, tuple[str, ...]] = {}
    domains: dict[str, tuple[list[str], str | None]] = {}
    for number, block in enumerate(blocks or [], start=1):
        if not isinstance(block, dict):
            raise source.refusal(f"blocks, item {number}", saw=block, wanted="a map")
        place = f"blocks, item {number}"
        hosts = yaml_hosts(block.get("nodes"), place=f"{place}, nodes", source=source)
        switch = block.get("switch")
        if isinstance(switch, str):
            nodes[switch] = (*nodes.get(switch, ()), *hosts)
            below.setdefault(switch, ())
        _add_domains(domains, labels=_labels(block.get("annotations")), hosts=hosts)
    lines = [
        SwitchLine(name=name, line=0, nodes=nodes.get(name, ()), switches=children)
        for name, children in below.items()
    ]
    network = build_tree(lines, blocks=_domain_tiers(domains, taken=below), notes=(), source=source)
    return Reading(source="topograph", kind="topograph model", network=network)


def _model_switches(value: Yaml, *, source: SourceText) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise source.refusal("switches", saw=value, wanted="a map of switches")
    below: dict[str, tuple[str, ...]] = {}
    for name, facts in value.items():
        inner = facts.get("switches") if isinstance(facts, dict) else None
        below[name] = yaml_hosts(inner, place=f"switches, {name}", source=source)
    return below


def _labels(value: object) -> dict[str, str]:
    facts = value if isinstance(value, dict) else {}
    return {str(key).rsplit("/", 1)[-1]: str(word) for key, word in facts.items() if word}


def _add_domains(
    domains: dict[str, tuple[list[str], str | None]],
    *,
    labels: Mapping[str, str],
    hosts: Iterable[str],
) -> None:
    """A domain holds its hosts itself, or its sub-domains hold them."""
    outer, inner = labels.get("domain"), labels.get("sub-domain")
    if outer is None:
        return
    if inner is not None and inner != outer:
        domains.setdefault(outer, ([], None))
        domains.setdefault(inner, ([], outer))[0].extend(hosts)
    else:
        domains.setdefault(outer, ([], None))[0].extend(hosts)


def _domain_tiers(
    domains: Mapping[str, tuple[list[str], str | None]], *, taken: Iterable[str]
) -> list[Tier]:
    """Domains as tiers; one that is called like a switch gets a prefix."""
    switches = set(taken)
    names = {name: f"nvlink:{name}" if name in switches else name for name in domains}
    return [
        Tier(
            name=names[name],
            kind=TierKind.NVLINK_DOMAIN,
            parent=None if parent is None else names[parent],
            nodes=tuple(dict.fromkeys(hosts)),
        )
        for name, (hosts, parent) in domains.items()
    ]


def read_instances(source: SourceText) -> Reading:
    """Read the graph engine's answer: instances with their switches, closest first.

    Raises:
        TopologyError: Not of this shape.
    """
    value = read_json(source)
    listed = value.get("instances") if isinstance(value, dict) else value
    below: dict[str, list[str]] = {}
    nodes: dict[str, list[str]] = {}
    domains: dict[str, tuple[list[str], str | None]] = {}
    for number, item in enumerate(_maps(listed, place="instances", source=source)):
        place = f"instances[{number}]"
        name = _word(item.get("id"), place=f"{place}.id", source=source)
        layers = _words(item.get("network_layers"), place=place, source=source)
        for layer in layers:
            below.setdefault(layer, [])
        for child, parent in pairwise(layers):
            below[parent] += [] if child in below[parent] else [child]
        if layers:
            nodes.setdefault(layers[0], []).append(name)
        _add_domains(domains, labels=_labels(item.get("labels")), hosts=[name])
    lines = [
        SwitchLine(name=name, line=0, nodes=tuple(nodes.get(name, ())), switches=tuple(kids))
        for name, kids in below.items()
    ]
    network = build_tree(lines, blocks=_domain_tiers(domains, taken=below), notes=(), source=source)
    return Reading(source="topograph", kind="topograph graph", network=network)


def read_compute_nodes(source: SourceText) -> Reading:
    """Read a NetQ or NMX list of compute nodes: their GPUs, slots and NVLink domain.

    Raises:
        TopologyError: Not of this shape.
    """
    nodes = []
    domains: dict[str, tuple[list[str], str | None]] = {}
    for number, item in enumerate(_maps(read_json(source), place="document", source=source)):
        name = _word(item.get("Name"), place=f"[{number}].Name", source=source)
        gpus = item.get("GpuIDList")
        count = len(gpus) if isinstance(gpus, list) else 0
        draft = Draft(name=name, gpus={index: Gpu(index=index) for index in range(count)})
        draft.notes.append("GPUs are numbered in document order")
        place = item.get("LocationInfo")
        facts = place if isinstance(place, dict) else {}
        told = [f"{key} {facts[key]}" for key in facts if isinstance(facts[key], int | str)]
        told += [f"health {item['Health']}"] if isinstance(item.get("Health"), str) else []
        draft.notes.append(f"told about it: {', '.join(told)}")
        nodes.append(draft.build(source))
        domain = item.get("DomainUUID")
        if isinstance(domain, str) and domain:
            domains.setdefault(domain, ([], None))[0].append(name)
    network = Network(tiers=tuple(_domain_tiers(domains, taken=())))
    return Reading(source="topograph", kind="NetQ nodes", nodes=tuple(nodes), network=network)


def _maps(value: object, *, place: str, source: SourceText) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise source.refusal(place, saw=value, wanted="a list of objects")
    return [{str(key): word for key, word in item.items()} for item in value]


def _words(value: object, *, place: str, source: SourceText) -> list[str]:
    words = value if isinstance(value, list) else [] if value is None else [None]
    named = [word for word in words if isinstance(word, str)]
    if len(named) < len(words):
        wanted = "a list of switch names"
        raise source.refusal(f"{place}.network_layers", saw=value, wanted=wanted)
    return named


def _word(value: object, *, place: str, source: SourceText) -> str:
    if not isinstance(value, str) or not value:
        raise source.refusal(place, saw=value, wanted="a name")
    return value
