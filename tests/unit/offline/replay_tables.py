"""Hand-made tables of one small workload on CPU processes."""

import csv

MODEL = {
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 16,
    "ffn": 128,
    "vocab": 256,
}
WORKLOAD = {
    **MODEL,
    "workload": "small",
    "seq_len": 64,
    "global_batch_seqs": 4,
    "precision": "fp32",
    "world_size": 4,
    "gpu": "cpu",
}


def row(tp=1, cp=1, step_s=1.0, outcome="measured", **changes):
    """One candidate on four ranks; dp fills the world."""
    axes = {"tp": tp, "cp": cp, "pp": 1, "micro_batch": 1}
    return {**WORKLOAD, **axes, "step_s": step_s, "outcome": outcome, **changes}


#: Six candidates: the best is tp 2 x cp 2, one runs out of memory.
ROWS = (
    row(1, 1, None, "out_of_memory", peak_bytes=3_000_000),
    row(2, 1, 1.3),
    row(4, 1, 1.5),
    row(1, 2, 1.2),
    row(2, 2, 1.0),
    row(1, 4, 2.0),
)


def write_csv(path, rows=ROWS):
    names = list(dict.fromkeys(name for one in rows for name in one))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path
