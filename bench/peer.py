"""The same rows by a public analytic estimator, where it is installed: llm-analysis 0.2.

`make bench` installs it beside the environment, in `.venv/peer`; it is no dependency.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from bench.published import Published
from cptune.domain.candidate import DataParallelKind, Recompute
from cptune.domain.workload import Mlp
from cptune.predict.prediction import Predictor

_LIBRARY = "llm_analysis"
#: It takes the share of the peak as an input; every line of rows gets the one that suits it best.
_EFFICIENCIES = tuple(share / 100 for share in range(20, 70, 5))


def peer_version() -> str | None:
    """The installed version of the estimator; None where there is none."""
    home = str(Path(sys.prefix) / "peer")
    if home not in sys.path:
        sys.path.append(home)
    return version(_LIBRARY) if find_spec(_LIBRARY) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Predicted over measured of the same rows: theirs at the share that suits it, and ours."""

    efficiency: float
    theirs: Sequence[float]
    ours: Sequence[float]


def beside(rows: Sequence[Published]) -> Beside:
    """Both predictions of rows without context parallelism."""
    logging.disable(logging.WARNING)
    tried = [(share, [_step_s(one, share) / one.step_s for one in rows]) for share in _EFFICIENCIES]
    logging.disable(logging.NOTSET)
    share, theirs = min(tried, key=lambda one: median(abs(ratio - 1) for ratio in one[1]))
    ours = [Predictor(one.case).predict(one.candidate).time.step_s / one.step_s for one in rows]
    return Beside(efficiency=share, theirs=theirs, ours=ours)


def _step_s(one: Published, efficiency: float) -> float:
    analysis, config = (import_module(f"{_LIBRARY}.{name}") for name in ("analysis", "config"))
    case, lay, gpu = one.case, one.candidate.layout, one.case.machine.gpu
    model = config.ModelConfig(
        name=one.model,
        num_layers=case.model.layers,
        n_head=case.model.heads,
        hidden_dim=case.model.hidden,
        vocab_size=case.model.vocab,
        max_seq_len=case.workload.seq_len,
        num_key_value_heads=case.model.kv_heads,
        ffn_embed_dim=case.model.ffn,
        expansion_ratio=case.model.ffn / case.model.hidden,
    )
    card = config.GPUConfig(
        name=gpu.name,
        mem_per_GPU_in_GB=100 * gpu.memory_bytes / 1e9,  # so that it judges time, not memory
        hbm_bandwidth_in_GB_per_sec=gpu.hbm_bytes_per_s / 1e9,
        intra_node_bandwidth_in_GB_per_sec=gpu.nvlink_bytes_per_s / 1e9,  # as its own H100 has
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=gpu.bf16_flop_per_s / 1e12,
        inter_node_bandwidth_in_GB_per_sec=case.machine.network_bytes_per_s * 8 / 1e9,
    )
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        judge = analysis.LLMAnalysis(
            model,
            card,
            config.DtypeConfig(),
            config.ParallelismConfig(tp_size=lay.tp, pp_size=lay.pp, dp_size=lay.dp),
            flops_efficiency=efficiency,
        )
        said = judge.training(**_arguments(one, analysis))
    return said["latency_per_iter"]


def _arguments(one: Published, analysis: ModuleType) -> dict[str, Any]:
    kinds, words = analysis.DSZeRO, analysis.ActivationRecomputation
    zero = {
        DataParallelKind.DDP: kinds.NONE,
        DataParallelKind.ZERO1: kinds.STAGE_1,
        DataParallelKind.ZERO2: kinds.STAGE_2,
        DataParallelKind.FSDP: kinds.STAGE_3,
    }
    full = one.candidate.recompute is Recompute.FULL
    return {
        "batch_size_per_gpu": one.candidate.micro_batch,
        "global_batch_size": one.case.workload.global_batch_seqs,
        "seq_len": one.case.workload.seq_len,
        "activation_recomputation": words.FULL if full else words.NONE,
        "ds_zero": zero[one.candidate.data_parallel],
        "mlp_gated_linear_units": one.case.model.mlp is Mlp.SWIGLU,
    }
