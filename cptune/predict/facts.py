"""GPU peaks, kernel curves and constants as data with sources; an unknown GPU is an error."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from cptune.domain.workload import Precision
from cptune.errors import SpecError
from topology.words import nearest_word


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One row of peaks.toml: dense peaks, memory and links of a GPU."""

    name: str
    generation: str
    bf16_flop_per_s: float
    fp8_flop_per_s: float
    fp32_flop_per_s: float
    gemm_share: float
    memory_bytes: int  # 0: not known, as of a CPU process without a budget
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    domain_size: int
    driver_names: tuple[str, ...]
    source: str
    core_fp32_limit_flop_per_s: float | None = None
    core_bf16_limit_flop_per_s: float | None = None
    exchange_s: float = 0.0  # that a rank's own thread spends on one, beside what it transfers

    def limit_flop_per_s(self, precision: Precision) -> float | None:
        """What one core of a CPU, or one GPU, cannot exceed; None where it is not known."""
        if self.generation != "cpu":
            return self.peak_flop_per_s(precision)
        fp32, bf16 = self.core_fp32_limit_flop_per_s, self.core_bf16_limit_flop_per_s
        return {Precision.FP32: fp32, Precision.BF16: bf16}.get(precision)

    def peak_flop_per_s(self, precision: Precision) -> float:
        """The dense peak at a precision.

        Raises:
            SpecError: when the GPU does not compute at it.
        """
        peak = {
            Precision.BF16: self.bf16_flop_per_s,
            Precision.FP8: self.fp8_flop_per_s,
            Precision.FP32: self.fp32_flop_per_s,
        }[precision]
        if peak <= 0:
            raise SpecError(
                f"workload.precision | {self.name} has no {precision} units",
                hint='wanted precision = "bf16" or "fp32"',
            )
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCurve:
    """The rate of an attention kernel by length, `most * S / (S + half)`, in TFLOP/s.

    FLOPs are those of the mask: a causal kernel is credited with half the square.
    """

    forward_tflops: float
    forward_half: float
    forward_half_causal: float
    backward_tflops: float
    backward_half: float
    backward_half_causal: float
    source: str

    def forward_flop_per_s(self, tokens: float, *, causal: bool) -> float:
        """The forward rate at a sequence of that many tokens."""
        half = self.forward_half_causal if causal else self.forward_half
        return self.forward_tflops * 1e12 * tokens / (tokens + half)

    def backward_flop_per_s(self, tokens: float, *, causal: bool) -> float:
        """The backward rate, over 2.5 times the forward's FLOPs."""
        half = self.backward_half_causal if causal else self.backward_half
        return self.backward_tflops * 1e12 * tokens / (tokens + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What no data sheet says: one fixed set for every workload.

    constants.toml says what each one is and where it comes from.
    """

    version: str
    gemm_sustained: float
    gemm_half_rows: float
    gemm_half_columns: float
    gemm_half_depth: float
    hbm_share: float
    eager_passes: float
    layer_launch_s: float
    tp_overlap: float
    pp_overlap: float
    overlap_cost: float
    collective_latency_s: float
    p2p_latency_s: float
    nvlink_share: float
    network_share: float
    hop_latency_s: float
    stage_launch_s: float
    grad_bytes: float
    memory_band: tuple[float, float]


@cache
def read_constants() -> Constants:
    """The constants that ship."""
    fields = dict(_table("constants.toml")["constants"])
    low, high = fields.pop("memory_band")
    return Constants(memory_band=(low, high), **fields)


def read_curve(generation: str, kernel: str, head_dim: int) -> KernelCurve:
    """The curve of a kernel at the nearest known head dimension; "auto" is the usual one.

    Raises:
        SpecError: when the kernel has no curve on that generation.
    """
    return _curve(generation, kernel, head_dim)


def kernel_names(generation: str) -> list[str]:
    """The attention kernels with measured rates on that generation."""
    keys = (key.split(".") for key in _table("kernels.toml"))
    return sorted({words[1] for words in keys if words[0] == generation})


@cache
def _curve(generation: str, kernel: str, head_dim: int) -> KernelCurve:
    table = _table("kernels.toml")
    name = str(table["auto"][generation]) if kernel == "auto" else kernel
    known = {
        int(key.split(".")[2]): row
        for key, row in table.items()
        if key.startswith(f"{generation}.{name}.")
    }
    if not known:
        names = kernel_names(generation)
        raise SpecError(
            f"kernel {name!r} has no measured rate on {generation}; known: {', '.join(names)}; "
            f"nearest legal: {nearest_word(name, names)}",
            hint="add its rates and source to cptune/predict/kernels.toml",
        )
    return KernelCurve(**known[min(known, key=lambda dim: (abs(dim - head_dim), dim))])


@cache
def _table(file: str) -> dict[str, dict[str, Any]]:
    text = resources.files("cptune.predict").joinpath(file).read_text(encoding="utf-8")
    return tomllib.loads(text)


def gpu_names() -> list[str]:
    """Names that `cluster.gpu` accepts."""
    return list(_table("peaks.toml"))


def read_gpu(name: str | None) -> GpuFacts:
    """The facts of a GPU by its name.

    Raises:
        SpecError: when there are none; the hint says how to add or to measure them.
    """
    rows = _table("peaks.toml")
    if name is None or name not in rows:
        known = ", ".join(rows)
        if name is None:
            raise SpecError(
                f"cluster.gpu | missing, wanted one of {known}",
                hint='say what to plan for, for example cluster.gpu = "H100-SXM-80GB" or "cpu"',
            )
        raise SpecError(
            f"cluster.gpu | {name!r} is not known; known: {known}; "
            f"nearest legal: {nearest_word(name, rows)}",
            hint="add its peaks, memory and source as a table of cptune/predict/peaks.toml, "
            "or run the sweep on it: trials measure what no table says",
        )
    fields = dict(rows[name])
    names = tuple(fields.pop("driver_names"))
    return GpuFacts(name=name, driver_names=names, **fields)


def gpu_of_driver(driver_name: str) -> str | None:
    """Our name of what a driver calls a GPU, or None."""
    for name, row in _table("peaks.toml").items():
        if driver_name == name or driver_name.removeprefix("NVIDIA ") in row["driver_names"]:
            return name
    return None
