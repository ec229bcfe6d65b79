"""The same rows by a public analytic estimator, where it is installed: llm-analysis 0.2."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from bench.published import Published
from cptune.domain.candidate import DataParallelKind, Recompute
from cptune.domain.workload import Mlp
from cptune.predict.prediction import Predictor

_LIBRARY = "llm_analysis"
#: It takes the share of the peak as an input: the one that suits it best on the dgxc rows.
_EFFICIENCY = 0.5


def has_peer() -> bool:
    """Is the estimator installed? It is no dependency: `pip install llm-analysis` adds it."""
    return find_spec(_LIBRARY) is not None


def peer_ratios(rows: Sequence[Published]) -> list[tuple[str, float, float]]:
    """Source, its ratio and ours (predicted over measured) of rows without context parallelism."""
    logging.disable(logging.WARNING)
    found = list[tuple[str, float, float]]()
    for one in rows:
        if one.candidate.layout.cp == 1:
            ours = Predictor(one.case).predict(one.candidate).time.step_s
            found.append((one.source, _step_s(one) / one.step_s, ours / one.step_s))
    logging.disable(logging.NOTSET)
    return found


def _step_s(one: Published) -> float:
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
        intra_node_bandwidth_in_GB_per_sec=2 * gpu.nvlink_bytes_per_s / 1e9,
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
            flops_efficiency=_EFFICIENCY,
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
