"""The published sweep of the playbook as a table that `cptune replay` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from bench.published import Published, read_steps
from bench.scoring import by
from cptune.domain.workload import Precision

_LEAST = 10  # candidates of a workload: fewer are found by any search
_OF_CANDIDATE = ("tp", "cp", "pp", "vpp", "dp", "micro_batch", "recompute", "data_parallel")


def replay_rows(rows: Iterable[Published]) -> list[dict[str, object]]:
    """A row for each published step of a workload with enough of them."""
    groups = by(rows, _workload)
    return [_row(name, one) for name, same in groups.items() if len(same) >= _LEAST for one in same]


def read_rows() -> list[dict[str, object]]:
    """Those of the playbook's sweep, one and many nodes, with pipelines and without."""
    return replay_rows(one for one in read_steps(Precision.BF16) if one.source == "hf-playbook")


def _workload(one: Published) -> str:
    tokens = one.case.workload.tokens_per_step >> 20
    return f"{one.model}, {one.world_size} GPUs, {tokens}Mi tokens"


def _row(name: str, one: Published) -> dict[str, object]:
    case, axes = one.case, one.candidate.axes()
    machine = case.machine
    shape = {key: value for key, value in asdict(case.model).items() if key != "preset"}
    return {
        "workload": name,
        **{key: axes[key] for key in _OF_CANDIDATE},
        "kernel": axes["kernel"],
        **shape,
        "seq_len": case.workload.seq_len,
        "global_batch_seqs": case.workload.global_batch_seqs,
        "mask": case.workload.mask.value,
        "precision": case.workload.precision.value,
        "world_size": machine.world_size,
        "gpu": machine.gpu.name,
        "gpus_per_node": machine.node_size,
        "network_bytes_per_s": machine.network_bytes_per_s,
        "gather_hops": json.dumps(machine.gather_hops),
        "reduce_hops": json.dumps(machine.reduce_hops),
        "stack": None if case.stack is None else case.stack.value,
        "pipeline": case.pipeline.value,
        "step_s": one.step_s,
        "peak_bytes": None if one.peak_bytes is None else round(one.peak_bytes),
        "outcome": "measured",
    }
