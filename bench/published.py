"""Published measurements as cases: what a row and its source say, nothing guessed for one row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cptune.domain.candidate import Candidate, DataParallelKind, Recompute
from cptune.domain.layout import ParallelLayout
from cptune.domain.stack import PipelineSplit, Stack
from cptune.domain.workload import Mlp, ModelShape, Norm, Precision, Workload
from cptune.predict.case import Case, Hops, Machine
from cptune.predict.facts import read_gpu
from cptune.predict.prediction import Predictor

#: Tables beside a checkout, never inside it.
MEASUREMENTS = Path(__file__).parents[2] / "shared" / "data" / "measurements"

GPUS = {
    "H100-80GB": "H100-SXM-80GB",
    "H100-96GB-HBM2e-500W": "H100-SXM-96GB",
    "H200": "H200-SXM-141GB",
    "B200": "B200-SXM-180GB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What holds for every row of a source: its software, and the trust it deserves."""

    stack: Stack
    kernel: str
    data_parallel: DataParallelKind
    pipeline: PipelineSplit = PipelineSplit.EVEN


SOURCES = {
    "dgxc": Source(
        stack=Stack.FUSED, kernel="cudnn", data_parallel=DataParallelKind.ZERO1
    ),  # NeMo with Transformer Engine
    "mosaic": Source(
        stack=Stack.EAGER, kernel="triton", data_parallel=DataParallelKind.FSDP
    ),  # llm-foundry of 2023, attn_impl triton
    "hf-playbook": Source(
        stack=Stack.EAGER,
        kernel="fa2",
        data_parallel=DataParallelKind.ZERO1,
        pipeline=PipelineSplit.BALANCED,
    ),  # nanotron
    "titan": Source(stack=Stack.EAGER, kernel="sdpa", data_parallel=DataParallelKind.FSDP),
}

_HOP_RANKS = 32  # fewer are bound by volume
#: Vocabularies are tied in GPT-3 and MPT (their model cards) and in the 1B model of the sweep.
_TIED = ("gpt3", "mpt", "hf-llama-1b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One measured step and the candidate that it was."""

    source: str
    row: Mapping[str, str]
    case: Case
    candidate: Candidate
    step_s: float
    peak_bytes: float | None

    @property
    def model(self) -> str:
        """The model's name."""
        return self.row["model"]

    @property
    def world_size(self) -> int:
        """GPUs of the run."""
        return self.case.machine.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A cluster's network as its own collectives measured it."""

    bytes_per_s: float
    gather_hops: Hops
    reduce_hops: Hops


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of one table."""
    with (MEASUREMENTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_steps(precision: Precision) -> list[Published]:
    """Dense rows of known sources at one precision; low-rank fine-tuning trains no weights."""
    fabric = sweep_fabric()
    return [
        found
        for row in read_table("steps.csv")
        if row["precision"].startswith(precision.value.upper())
        and (found := _published(row, precision, fabric)) is not None
    ]


def sweep_fabric() -> Fabric:
    """The fabric of the hf-playbook's cluster, from its collectives of 256 MB.

    Their time is about proportional to the ranks, so each rank costs a hop, less in larger groups.
    What two nodes reach bounds the volume.
    """
    speed = _measured("all_gather")
    return Fabric(
        bytes_per_s=speed[16][0] / 8,
        gather_hops=_hops(speed, passes=1),
        reduce_hops=_hops(_measured("all_reduce"), passes=2),
    )


def _measured(collective: str) -> dict[int, tuple[float, float]]:
    """Bus bandwidth and message bytes by number of ranks."""
    return {
        int(row["n_gpus"]): (float(row["measured_busbw_gb_s"]) * 1e9, float(row["message_bytes"]))
        for row in read_table("links.csv")
        if row["system"].startswith("HF") and row["collective"] == collective
    }


def _hops(measured: dict[int, tuple[float, float]], *, passes: int) -> Hops:
    """Seconds that each rank adds, on four nodes and more; an all-reduce passes the ring twice."""
    return tuple(
        (ranks, passes * size / speed / (ranks - 1))
        for ranks, (speed, size) in sorted(measured.items())
        if ranks >= _HOP_RANKS
    )


def source_of(note: str) -> str:
    """The tag in brackets that opens a note."""
    found = re.search(r"\[([\w-]+)\]", note)
    return found[1] if found else ""


def _published(row: Mapping[str, str], precision: Precision, fabric: Fabric) -> Published | None:
    tag, note = source_of(row["source_note"]), row["source_note"]
    wanted = ("n_layers", "step_time_s", "global_batch_seqs")
    if tag not in SOURCES or row["gpu"] not in GPUS or not all(row[name] for name in wanted):
        return None
    if "LORA" in note or row["ep"] not in ("", "1"):
        return None
    source, gpu, slow = SOURCES[tag], read_gpu(GPUS[row["gpu"]]), tag == "hf-playbook"
    if "Maxtext" in note:
        source = replace(source, data_parallel=DataParallelKind.FSDP)
    case = Case(
        model=_model(row),
        workload=Workload(
            seq_len=int(row["seq_len"]),
            global_batch_seqs=int(row["global_batch_seqs"]),
            precision=precision,
        ),
        machine=Machine(
            gpu=gpu,
            world_size=int(row["n_gpus"]),
            node_size=8,
            island_size=8,
            island_bytes_per_s=gpu.nvlink_bytes_per_s,
            network_bytes_per_s=fabric.bytes_per_s if slow else 50e9,
            gather_hops=fabric.gather_hops if slow else (),
            reduce_hops=fabric.reduce_hops if slow else (),
            capacity_bytes=gpu.memory_bytes,
        ),
        stack=source.stack,
        pipeline=source.pipeline,
    )
    peak = float(row["peak_mem_gb"]) * (1 << 30) if row["peak_mem_gb"] else None
    return Published(
        source=tag,
        row=row,
        case=case,
        candidate=_candidate(row, source, case),
        step_s=float(row["step_time_s"]),
        peak_bytes=peak,
    )


def _model(row: Mapping[str, str]) -> ModelShape:
    plain = row["model"].startswith(("gpt", "mpt"))
    return ModelShape(
        layers=int(row["n_layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["n_heads"]),
        kv_heads=int(row["n_kv_heads"]),
        head_dim=int(row["hidden"]) // int(row["n_heads"]),
        ffn=int(row["ffn_hidden"]),
        vocab=int(row["vocab"]),
        mlp=Mlp.GELU if plain else Mlp.SWIGLU,
        norm=Norm.LAYER if plain else Norm.RMS,
        tied_embeddings=row["model"].startswith(_TIED),
    )


def _candidate(row: Mapping[str, str], source: Source, case: Case) -> Candidate:
    def size(name: str) -> int:
        return int(row[name] or 1)

    note, kind = row["source_note"], source.data_parallel
    if "SHARD_GRAD_OP" in note:
        kind = DataParallelKind.ZERO2
    if "ZeRO-0" in note:
        kind = DataParallelKind.DDP
    candidate = Candidate(
        layout=ParallelLayout(
            tp=size("tp"), cp=size("cp"), pp=size("pp"), vpp=size("vpp"), dp=size("dp")
        ),
        stages=size("cp") - 1,
        micro_batch=size("micro_batch"),
        data_parallel=kind,
        kernel=source.kernel,
    )
    return replace(candidate, recompute=_recompute(row["recompute"], candidate, case))


def _recompute(said: str, candidate: Candidate, case: Case) -> Recompute:
    """What is published; else the lightest that can be held."""
    for word in Recompute:
        if said.startswith(word.value):
            return word
    return next(_holdable(candidate, case), Recompute.FULL)


def _holdable(candidate: Candidate, case: Case) -> Iterator[Recompute]:
    predictor = Predictor(case)
    for word in Recompute:
        if not predictor.is_too_big(replace(candidate, recompute=word)):
            yield word
