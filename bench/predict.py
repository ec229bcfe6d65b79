"""How far the prediction lies from published measurements, with one fixed set of constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from bench.peer import beside, peer_version
from bench.plan_speed import measure_speed
from bench.playbook import playbook, rank_claim
from bench.published import MEASUREMENTS, Published, read_steps, read_table
from bench.record import Claim, Report, Table, at_most, exactly
from bench.scoring import (
    MANY_NODES,
    by,
    error_row,
    errors,
    group,
    ranked_rate,
    ratio,
    real_rate,
    spearman,
    workload,
)
from bench.through_spec import count_unlike, count_unlike_without_stack
from cptune.domain.workload import Precision
from cptune.predict.facts import read_constants, read_curve
from cptune.predict.prediction import Predictor

_GENERATIONS = {"H": "hopper", "A": "ampere", "B": "blackwell"}


def run() -> Report:
    """Every figure that the prediction is held to; without the tables, only its speed."""
    tables, claims = measure_speed()
    notes = [
        f"constants {read_constants().version}, the same for every row",
        "error: predicted over measured - 1, without sign; bias: median of predicted / measured",
        "a row without a published recompute takes the lightest that can be held",
        "a row of the hf-playbook is one step, the fourth (NANOTRON_BENCHMARK in nanotron)",
        "oracle: knows both times of twins and says one; omniscient: knows each true time, which "
        "is measured under the noise of twins of that size",
    ]
    if not MEASUREMENTS.is_dir():
        notes.append("no published measurements beside this checkout: accuracy is not scored")
        return Report(notes=notes, tables=tables, claims=claims)
    rows = read_steps(Precision.BF16)
    for more_tables, more_claims in (
        _steps(rows),
        playbook(rows),
        _ranks(rows),
        _memory(rows),
        _attention(),
    ):
        tables += more_tables
        claims += more_claims
    tables += _eight_bit()
    claims.append(exactly("rows that a sweep.toml predicts otherwise", count_unlike(rows), 0))
    notes.append(
        f"{count_unlike_without_stack(rows)} of {len(rows)} rows would be predicted otherwise by "
        "a sweep.toml without [stack]"
    )
    if peer := peer_version():
        plain = [one for one in rows if one.candidate.layout.pp == one.candidate.layout.cp == 1]
        tables.append(_peer(plain))
        notes.append(
            f"llm-analysis {peer} was run on the same rows; it takes the share of the peak as "
            "given: that which suits it best"
        )
    else:
        notes.append("llm-analysis is not installed: no peer beside the same rows")
    return Report(notes=notes, tables=tables, claims=claims)


def _steps(rows: Sequence[Published]) -> tuple[list[Table], list[Claim]]:
    groups = {name: [ratio(one) for one in found] for name, found in by(rows, group).items()}
    groups["trust A: dgxc and mosaic"] = groups["dgxc"] + groups["mosaic"]
    claims = list[Claim]()
    for name in ("trust A: dgxc and mosaic", "hf-playbook, one node"):
        middle, far = errors(groups[name])
        claims.append(at_most(f"step time, {name}, median error", middle, 0.12))
        claims.append(at_most(f"step time, {name}, 90th percentile", far, 0.30))
    table = Table(
        title="Step time, dense, bf16",
        columns=("rows", "n", "median error", "90th percentile", "bias"),
        rows=[error_row(name, ratios) for name, ratios in groups.items()],
    )
    return [table], claims


def _ranks(rows: Sequence[Published]) -> tuple[list[Table], list[Claim]]:
    """Inside a workload: one model on one number of GPUs, of one kind of row."""
    lines, found = list[list[str]](), dict[str, list[float]]()
    for name, inside in sorted(by(rows, workload).items()):
        if len(inside) < 5 or (inside[0].source == "dgxc"):
            continue
        real = [real_rate(one) for one in inside]
        said = [ranked_rate(one) for one in inside]
        found.setdefault(group(inside[0]), []).append(spearman(said, real))
        best = real[max(range(len(said)), key=lambda index: said[index])]
        regret = "-" if inside[0].source == "mosaic" else f"{max(real) / best - 1:.1%}"
        lines.append([name, str(len(inside)), f"{spearman(said, real):.3f}", regret])
    lines += [
        [f"median of {name}", str(len(values)), f"{median(values):.3f}", "-"]
        for name, values in found.items()
    ]
    table = Table(
        title="Rank correlation of throughput inside a workload (dgxc has one layout in each)",
        columns=("workload", "n", "Spearman", "regret of the first pick"),
        rows=lines,
    )
    return [table], [
        rank_claim(f"Spearman inside a workload, {name}, lowest", min(values))
        for name, values in found.items()
        if "rest" not in name and name != MANY_NODES
    ]


def _memory(rows: Sequence[Published]) -> tuple[list[Table], list[Claim]]:
    ratios: dict[str, list[float]] = defaultdict(list)
    pruned = false_fits = low = high = 0
    for one in rows:
        if one.peak_bytes is None:
            continue
        predictor = Predictor(one.case)
        band = predictor.memory(one.candidate)
        ratios[f"{one.source} {one.model}"].append(band.likely_bytes / one.peak_bytes)
        fits, capacity = predictor.fits(band), one.case.machine.capacity_bytes
        pruned += fits == "no"
        false_fits += fits == "yes" and one.peak_bytes > capacity
        low += one.peak_bytes < band.low_bytes
        high += one.peak_bytes > band.high_bytes
    every = [one for found in ratios.values() for one in found]
    table = Table(
        title=f"Peak memory; {low} of {len(every)} rows lie below the band, {high} above",
        columns=("rows", "n", "median error", "90th percentile", "bias"),
        rows=[error_row(name, found) for name, found in {**ratios, "all": every}.items()],
    )
    claims = [
        at_most("peak memory, median error", errors(every)[0], 0.10),
        at_most("published fits that are pruned", pruned, 0),
        at_most("peaks above the card that are called fits", false_fits, 0),
    ]
    return [table], claims


def _attention() -> tuple[list[Table], list[Claim]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in read_table("attention.csv"):
        plain = row["source_tag"] in ("fa3-fig", "magi-kernel") and "varlen" not in row["note"]
        kernel = {"FA2": "fa2", "FA3": "fa3", "cuDNN": "cudnn", "SDPA": "sdpa"}.get(row["kernel"])
        if not (plain and kernel and row["tflops_per_gpu"] and row["gpu"].startswith("H")):
            continue
        curve = read_curve(_GENERATIONS[row["gpu"][0]], kernel, int(row["head_dim"]))
        causal, length = row["causal"] == "1", int(row["seq_len"])
        rate = curve.forward_flop_per_s if row["pass"] == "fwd" else curve.backward_flop_per_s
        said = rate(length, causal=causal) / 1e12
        groups[f"{row['kernel']} {row['pass']}"].append(said / float(row["tflops_per_gpu"]))
    every = [ratio for group in groups.values() for ratio in group]
    table = Table(
        title="Attention kernels on H100 by length, 512 to 32768 tokens",
        columns=("kernel", "n", "median error", "90th percentile", "bias"),
        rows=[error_row(name, found) for name, found in {**groups, "all": every}.items()],
    )
    return [table], [at_most("attention rate, median error", errors(every)[0], 0.08)]


def _eight_bit() -> list[Table]:
    groups = by(read_steps(Precision.FP8), lambda one: one.source)
    return [
        Table(
            title="Step time, dense, fp8 (apart: no claim)",
            columns=("rows", "n", "median error", "90th percentile", "bias"),
            rows=[error_row(name, [ratio(one) for one in found]) for name, found in groups.items()],
        )
    ]


def _peer(rows: Sequence[Published]) -> Table:
    lines = list[list[str]]()
    for name, inside in sorted(by(rows, group).items()):
        found = beside(inside)
        theirs, ours = error_row(name, found.theirs)[:4], error_row(name, found.ours)[2:4]
        lines.append([*theirs, f"{found.efficiency:.2f}", *ours])
    return Table(
        title="Step time of the rows without CP and PP, llm-analysis and ours",
        columns=("rows", "n", "theirs: median", "90th", "share of peak", "ours: median", "90th"),
        rows=lines,
    )
