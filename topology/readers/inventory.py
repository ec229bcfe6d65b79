"""Our own JSON, as `--format json` writes it."""

import json

from topology.errors import TopologyError
from topology.nouns import Topology
from topology.readers.reading import Reading, SourceText


def read_inventory(source: SourceText) -> Reading:
    """Read a recorded inventory.

    Raises:
        TopologyError: As `Topology.from_json`, with the file's name.
    """
    try:
        topology = Topology.from_json(read_json(source))
    except TopologyError as exc:
        if str(exc).startswith(source.name):
            raise
        raise TopologyError(f"{source.name}: {exc}", hint=exc.hint) from exc
    return Reading(
        source=topology.source, kind="inventory", nodes=topology.nodes, network=topology.network
    )


def read_json(source: SourceText) -> object:
    """Parse JSON; nothing but JSON.

    Raises:
        TopologyError: It is none; the message names line and column.
    """
    try:
        return json.loads(source.text, parse_constant=_refuse)
    except json.JSONDecodeError as exc:
        place = f"line {exc.lineno}, column {exc.colno}"
        raise source.refusal(place, saw=exc.msg, wanted="JSON") from exc
    except (RecursionError, ValueError) as exc:
        raise source.refusal("document", saw=str(exc)[:80], wanted="plain JSON") from exc


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")
