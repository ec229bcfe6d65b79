"""`nvidia-smi nvlink -s` (states and rates) and `-R` (far ends): what NVLinks each GPU has.

Neither says which GPU a link leads to, so pairs stay unknown until a matrix is read beside it.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from topology.nouns import Gpu
from topology.readers.reading import Draft, Reading, SourceText, spans
from topology.sysfs import normal_bus_id

_GPU = re.compile(r"\s*GPU ([0-9]{1,4}):\s*(.*?)\s*(?:\(UUID:\s*([^)\s]+)\))?\s*$")
_LINK = re.compile(r"\s*Link ([0-9]{1,3})\s*[:,]\s*(.*?)\s*$")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*GB/s")
_REMOTE = re.compile(r"Remote Device ([0-9A-Fa-f:.]+):\s*Link ([0-9]+)")
_OTHER = re.compile(
    r"P2P|Peer|System memory|SLI|Link is supported|Error|Replay|Recovery|CRC|Data |Raw "
)
_ELIDED = re.compile(r"\s*\[?\.\.\.\]?\s*$")
_INACTIVE = "all links are inactive"
_GIGA = 1e9


@dataclass(slots=True)
class _Block:
    """The lines below one GPU."""

    rates: dict[int, float] = field(default_factory=dict)  # link -> GB/s, active ones
    down: list[int] = field(default_factory=list)
    remotes: dict[int, str] = field(default_factory=dict)
    partial: bool = False
    remarks: list[str] = field(default_factory=list)


def read_nvlink_status(source: SourceText) -> Reading:
    """Read the status text; a blank line alone is what is printed where no GPU has NVLink.

    Raises:
        TopologyError: A line that is not understood, or a GPU that stands twice.
    """
    draft = Draft()
    blocks: dict[int, _Block] = {}
    block: _Block | None = None
    last = max((n for n, line in enumerate(source.lines, 1) if line.strip()), default=0)
    for number, raw in enumerate(source.lines, start=1):
        line = " ".join(raw.split())
        if match := _GPU.match(line):
            block = _open(match, draft=draft, blocks=blocks, number=number, source=source)
        elif block is not None and line.strip():
            _add(block, line=line, number=number, cut=number == last, source=source)
    if not blocks:
        draft.notes.append(
            "blank: nvidia-smi nvlink -s prints a blank line where no GPU has NVLink"
        )
    _check_lengths(blocks)
    for index, found in blocks.items():
        draft.notes += [f"GPU {index}: {text}" for text in _told(found)]
    rates = {i: r for i, b in blocks.items() if (r := _one_rate(b)) is not None}
    return Reading(
        source="nvidia-smi",
        kind="nvlink -s",
        nodes=(draft.build(source),),
        named=False,
        lane_bytes_per_s=rates,
    )


def _open(
    match: re.Match[str],
    *,
    draft: Draft,
    blocks: dict[int, _Block],
    number: int,
    source: SourceText,
) -> _Block:
    index = int(match.group(1))
    if index in blocks:
        raise source.refusal(f"line {number}", saw=f"GPU {index} again", wanted="each GPU once")
    name = match.group(2) or None
    draft.gpus[index] = Gpu(index=index, name=name, uuid=match.group(3))
    return blocks.setdefault(index, _Block())


def _add(block: _Block, *, line: str, number: int, cut: bool, source: SourceText) -> None:
    match = _LINK.match(line)
    if match is None:
        _add_other(block, line=line, number=number, cut=cut, source=source)
        return
    link, text = int(match.group(1)), match.group(2)
    if link in block.rates or link in block.down or link in block.remotes:
        raise source.refusal(f"line {number}", saw=f"Link {link} again", wanted="each link once")
    if rate := _RATE.fullmatch(text):
        block.rates[link] = float(rate.group(1))
    elif remote := _REMOTE.fullmatch(text):
        block.remotes[link] = normal_bus_id(remote.group(1)) or remote.group(1)
    elif "inactive" in text.lower():
        block.down.append(link)
    elif _OTHER.search(text):
        block.remarks.append("capabilities or counters only, no link states")
    elif cut or not text:
        block.partial = True
    else:
        wanted = "<rate> GB/s, <inactive> or Remote Device"
        raise source.refusal(f"line {number}, Link {link}", saw=text, wanted=wanted)


def _add_other(block: _Block, *, line: str, number: int, cut: bool, source: SourceText) -> None:
    text = line.strip()
    if _INACTIVE in text.lower():
        block.remarks.append("0 active NVLinks: all are inactive, which is an error state")
    elif _ELIDED.match(line) or cut:
        block.partial = not text.startswith("```") or block.partial
    elif text.startswith(("```", "$", "#")) or "nvidia-smi" in text or _OTHER.search(text):
        return
    else:
        raise source.refusal(f"line {number}", saw=text, wanted="GPU <n>: or Link <n>:")


def _check_lengths(blocks: dict[int, _Block]) -> None:
    """The last GPU of a text that was cut between two lines has fewer links than the others."""
    sizes = {i: len(b.rates) + len(b.down) + len(b.remotes) for i, b in blocks.items()}
    if len(sizes) > 1:
        last = list(blocks)[-1]
        if 0 < sizes[last] < min(size for i, size in sizes.items() if i != last):
            blocks[last].partial = True


def _told(block: _Block) -> list[str]:
    texts = list(dict.fromkeys(block.remarks))
    if block.partial:
        return [*texts, "its links are not all shown, so they are not counted"]
    if block.rates or block.down:
        shown = ", ".join(f"{rate:g}" for rate in sorted(set(block.rates.values())))
        whole = len(block.rates) + len(block.down)
        at = f" at {shown} GB/s" if shown else ""
        texts.append(f"{len(block.rates)} of {whole} NVLinks active{at}")
    if block.down:
        texts.append(f"NVLinks {spans(block.down)} inactive")
    if block.remotes:
        ends = Counter(block.remotes.values())
        shown = ", ".join(f"{bus} x{count}" for bus, count in sorted(ends.items()))
        texts.append(f"{len(block.remotes)} NVLinks to {shown}; what these are is not told")
    return texts


def _one_rate(block: _Block) -> float | None:
    rates = set(block.rates.values())
    return rates.pop() * _GIGA if len(rates) == 1 and not block.partial else None
