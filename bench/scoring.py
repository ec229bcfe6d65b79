"""How a prediction is scored against published rows: errors, ranks, and the groups of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from bench.published import Published
from cptune.predict.prediction import Predictor

MANY_NODES = "hf-playbook, PP=1"


def ratio(one: Published) -> float:
    """Predicted over measured step time."""
    return Predictor(one.case).predict(one.candidate).time.step_s / one.step_s


def errors(ratios: Iterable[float]) -> tuple[float, float]:
    """Median and 90th percentile of predicted over measured less one, without sign."""
    found = sorted(abs(ratio - 1) for ratio in ratios)
    return median(found), found[int(0.9 * (len(found) - 1))]


def tail(ratios: Iterable[float]) -> float:
    """The 90th percentile alone."""
    return errors(ratios)[1]


def error_row(name: str, ratios: Sequence[float]) -> list[str]:
    """Name, count, median error, 90th percentile and bias as cells."""
    middle, far = errors(ratios)
    return [name, str(len(ratios)), f"{middle:.1%}", f"{far:.1%}", f"{median(ratios):.3f}"]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; ties share their mean rank."""
    x, y = _mean_ranks(a), _mean_ranks(b)
    mean = (len(a) + 1) / 2
    top = sum((p - mean) * (q - mean) for p, q in zip(x, y, strict=True))
    spread = sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)
    return top / spread**0.5 if spread else 1.0


def _mean_ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [(2 * order.index(one) + order.count(one) + 1) / 2 for one in values]


def by(rows: Iterable[Published], key: Callable[[Published], str]) -> dict[str, list[Published]]:
    """Rows by what a key says of them, in their order."""
    groups: dict[str, list[Published]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def group(one: Published) -> str:
    """The group that a row's error counts in."""
    if one.source != "hf-playbook":
        return one.source
    if one.world_size == 8:
        return "hf-playbook, one node"
    return MANY_NODES if one.candidate.layout.pp == 1 else "hf-playbook, rest (by rank)"


def workload(one: Published) -> str:
    """The workload that a row ranks in: one model on one number of GPUs, of one kind of row."""
    tokens = one.case.workload.tokens_per_step // one.world_size
    batch = f", {tokens} tokens a GPU" if one.source == "hf-playbook" else ""
    return f"{group(one)}: {one.model} on {one.world_size} GPUs{batch}"


def real_rate(one: Published) -> float:
    """Measured tokens a second."""
    return one.case.workload.tokens_per_step / one.step_s


def ranked_rate(one: Published) -> float:
    """Throughput as `cptune plan` ranks it: what leaves no margin of memory comes last.

    Only where peaks are published: elsewhere every row is known to have fitted.
    """
    predictor = Predictor(one.case)
    said = predictor.predict(one.candidate)
    tight = one.peak_bytes is not None and predictor.is_tight(said.memory)
    return said.tokens_per_s_per_gpu * (1e-6 if tight else 1.0)
