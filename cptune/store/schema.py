"""The typed, versioned tables of a run directory; units are in the metadata of each field."""

from __future__ import annotations

import pyarrow as pa

#: Raised when a column changes its meaning or its type; a new column alone does not raise it.
SCHEMA_VERSION = 1
_VERSION_KEY = b"cptune.schema_version"
_TABLE_KEY = b"cptune.table"

_UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("tokens_per_s", "tokens/s"),
    ("tokens_per_s_per_gpu", "tokens/s"),
    ("_bytes", "bytes"),
    ("bytes", "bytes"),
    ("seconds", "s"),
    ("_s", "s"),
)


def _unit(name: str) -> str | None:
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), None)


def _schema(table: str, columns: dict[str, pa.DataType]) -> pa.Schema:
    fields = [
        pa.field(name, kind, metadata={"unit": unit} if (unit := _unit(name)) else None)
        for name, kind in columns.items()
    ]
    metadata = {_VERSION_KEY: str(SCHEMA_VERSION).encode(), _TABLE_KEY: table.encode()}
    return pa.schema(fields, metadata=metadata)


_WORD, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
_TRIAL_KEY = {"candidate_key": _WORD, "number": _WHOLE, "attempt": _WHOLE}
_RANK_PEAKS = dict.fromkeys(
    (
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "forward_peak_bytes",
        "backward_peak_bytes",
    ),
    _WHOLE,
)
_SPLIT = dict.fromkeys(
    (
        "states_bytes",
        "activations_bytes",
        "logits_bytes",
        "comm_bytes",
        "transient_bytes",
        "optimizer_peak_bytes",
    ),
    _WHOLE,
)
_KEPT = dict.fromkeys(
    (
        "kept_attention_bytes",
        "planned_kept_attention_bytes",
        "kept_peak_bytes",
        "planned_kept_peak_bytes",
    ),
    _WHOLE,
)
_DEPTH = {
    "extrapolated": pa.bool_(),
    "layers_measured": pa.list_(_WHOLE),
    "step_lo_s": _REAL,
    "step_hi_s": _REAL,
    "peak_lo_bytes": _WHOLE,
    "peak_hi_bytes": _WHOLE,
    "layers": _WHOLE,
}
_AXES = {
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "dp", "ulysses", "ep"), _WHOLE),
    **dict.fromkeys(("stages", "micro_batch"), _WHOLE),
    **dict.fromkeys(
        ("sharding", "strategy", "recompute", "loss", "data_parallel", "kernel"), _WORD
    ),
}

_TRACED_TRIAL = ("traced_step_s", "tp_blocked_s", "cp_blocked_s", "dp_blocked_s", "pp_blocked_s")
_TRACED_RANK = ("traced_step_s", "clock_offset_s", "clock_error_s")
_CONTENTION = ("idle_s", "busy_s")
_TIMING = ("round", "step_ci_share", "noisy")
#: Who wrote a trial, and the digests of its other files as that run wrote them.
_DIGESTED = ("ranks", "edges", "steps", "exposures", "trace")
_ORIGIN = ("run_id", "launcher", *(f"{one}_sha256" for one in _DIGESTED))
#: Columns that files of this version may lack, since they were written before there was one.
_LATER: dict[str, frozenset[str]] = {
    "trials": frozenset({*_TRACED_TRIAL, *_TIMING, *_SPLIT, *_DEPTH, *_ORIGIN, "ep"}),
    "ranks": frozenset({*_TRACED_RANK, *_SPLIT, *_KEPT, "used_bytes"}),
    "recipes": frozenset({*_SPLIT, "ep", "launcher"}),
    "curve": frozenset({"ep"}),
    "edges": frozenset(_CONTENTION),
    "steps": frozenset({"is_warmup"}),
    "exposures": frozenset({"late_s"}),
}

TRIALS = _schema(
    "trials",
    {
        **_TRIAL_KEY,
        "round": _WHOLE,
        "outcome": _WORD,
        "reason": _WORD,
        **_AXES,
        **dict.fromkeys(("step_s", "step_p10_s", "step_p90_s", "step_ci_share"), _REAL),
        "noisy": pa.bool_(),
        "slowest_rank": _WHOLE,
        **dict.fromkeys(("tokens_per_s", "tokens_per_s_per_gpu", "mfu"), _REAL),
        "mfu_formula": _WORD,
        "predicted_step_s": _REAL,
        **dict.fromkeys(
            (
                "predicted_peak_lo_bytes",
                "predicted_peak_bytes",
                "predicted_peak_hi_bytes",
            ),
            _WHOLE,
        ),
        "model_version": _WORD,
        **_RANK_PEAKS,
        **dict.fromkeys(("asked_bytes", "free_bytes", "short_bytes"), _WHOLE),
        "oom_kind": _WORD,
        "failed_rank": _WHOLE,
        "failed_node": _WORD,
        **dict.fromkeys(
            ("tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_exposed_s", "cp_comm_s"), _REAL
        ),
        "exposed_method": _WORD,
        **dict.fromkeys(_TRACED_TRIAL, _REAL),
        "imbalance": _REAL,
        "kernel_ran": _WORD,
        **dict.fromkeys(("first_loss", "first_grad_norm"), _REAL),
        **dict.fromkeys(
            (
                "proof_id",
                "convergence_fingerprint",
                "execution_fingerprint",
                "started_at",
                "finished_at",
            ),
            _WORD,
        ),
        **_SPLIT,
        **_DEPTH,
        **dict.fromkeys(_ORIGIN, _WORD),
    },
)

RANKS = _schema(
    "ranks",
    {
        **_TRIAL_KEY,
        "rank": _WHOLE,
        "node": _WORD,
        "device_kind": _WORD,
        "device_index": _WHOLE,
        "gpu_uuid": _WORD,
        "device_memory_bytes": _WHOLE,
        **dict.fromkeys(("tp", "cp", "dp", "pp", "pid"), _WHOLE),
        **_RANK_PEAKS,
        **dict.fromkeys(("attended_pairs", "planned_sent_bytes", "sent_bytes"), _WHOLE),
        "kernel_ran": _WORD,
        **dict.fromkeys(("first_loss", "first_grad_norm"), _REAL),
        "sample_hash": _WORD,
        "used_bytes": _WHOLE,
        **dict.fromkeys(_TRACED_RANK, _REAL),
        **_SPLIT,
        **_KEPT,
    },
)

_ENDS = {"a_rank": _WHOLE, "b_rank": _WHOLE, "axis": _WORD}
EDGES = _schema(
    "edges",
    {
        **_TRIAL_KEY,
        **_ENDS,
        "bytes": _WHOLE,
        "received_bytes": _WHOLE,
        "seconds": _REAL,
        "bytes_per_s": _REAL,
        **dict.fromkeys(_CONTENTION, _REAL),
    },
)

#: Columns that EDGES has too mean the same; a payload goes one way, from a to b.
PROBED_EDGES = _schema(
    "probed_edges",
    {
        "ring": _WHOLE,
        **_ENDS,
        **dict.fromkeys(("a_device", "b_device", "kind"), _WORD),
        "bytes": _WHOLE,
        **dict.fromkeys(
            (
                "seconds",
                "bytes_per_s",
                "busy_seconds",
                "busy_bytes_per_s",
                "promised_bytes_per_s",
                "promised_share",
            ),
            _REAL,
        ),
        "verdict": _WORD,
    },
)

STEPS = _schema(
    "steps",
    {
        **_TRIAL_KEY,
        "rank": _WHOLE,
        "index": _WHOLE,
        "seconds": _REAL,
        "is_warmup": pa.bool_(),
        **dict.fromkeys(("tp_exposed_s", "cp_exposed_s", "dp_exposed_s", "pp_exposed_s"), _REAL),
    },
)

EXPOSURES = _schema(
    "exposures",
    {
        **_TRIAL_KEY,
        "rank": _WHOLE,
        "axis": _WORD,
        "layer": _WHOLE,
        "whole_axis": pa.bool_(),
        "method": _WORD,
        **dict.fromkeys(("communication_s", "exposed_s", "blocked_s", "late_s"), _REAL),
        "bytes": _WHOLE,
    },
)

RECIPES = _schema(
    "recipes",
    {
        **dict.fromkeys(("name", "launcher", "candidate_key"), _WORD),
        **_AXES,
        "certified": pa.bool_(),
        "step_s": _REAL,
        "tokens_per_s": _REAL,
        "peak_allocated_bytes": _WHOLE,
        "exposed_share": _REAL,
        "recipe_json": _WORD,
    },
)

#: What a trial has only as one of a search.
_OF_A_SEARCH = frozenset(
    {
        *("number", "attempt", "round", "mfu", "mfu_formula", "model_version", "proof_id"),
        *("predicted_step_s", "predicted_peak_lo_bytes", "predicted_peak_bytes"),
        *("predicted_peak_hi_bytes", "convergence_fingerprint", "execution_fingerprint"),
        *("started_at", "finished_at"),
        *_ORIGIN,
    }
)
CURVE = _schema(
    "curve",
    {
        "seq_len": _WHOLE,
        **dict.fromkeys(("peak_bytes", "allocated_bytes", "reserved_bytes"), _WHOLE),
        **{field.name: field.type for field in TRIALS if field.name not in _OF_A_SEARCH},
    },
)

BALANCE = _schema(
    "balance",
    {
        **dict.fromkeys(("dp", "cp"), _WHOLE),
        "packing": _WORD,
        **dict.fromkeys(
            ("cv", "variance", "variance_ratio_to_cp1", "max_over_min", "slowest_over_mean"), _REAL
        ),
        "source": _WORD,
        "layers": _WORD,
    },
)


def why_foreign(schema: pa.Schema, expected: pa.Schema) -> str | None:
    """Why a file is not of this table and version; None when it is."""
    metadata, wanted = schema.metadata or {}, expected.metadata
    for key in (_TABLE_KEY, _VERSION_KEY):
        if metadata.get(key) != wanted[key]:
            return f"{key.decode()} is {metadata.get(key)!r}, wanted {wanted[key]!r}"
    later = _LATER.get(wanted[_TABLE_KEY].decode(), frozenset())
    kept = [field for field in expected if field.name in schema.names or field.name not in later]
    if not schema.equals(pa.schema(kept)):
        return "its columns are not those of the table"
    return None
