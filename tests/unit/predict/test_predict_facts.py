"""Facts: every row has a source, an unknown GPU is refused with a way out, curves fit charts."""

import tomllib
from importlib import resources

import pytest

from cptune.domain.workload import Precision
from cptune.errors import SpecError
from cptune.predict.facts import gpu_of_driver, read_constants, read_curve, read_gpu

KNOWN = [
    "H100-SXM-80GB", "H100-SXM-96GB", "H100-PCIe-80GB", "H200-SXM-141GB", "A100-SXM-80GB",
    "A100-SXM-40GB", "A800-SXM-80GB", "B200-SXM-180GB", "GB200-186GB", "cpu",
]  # fmt: skip


def table(name):
    return tomllib.loads(resources.files("cptune.predict").joinpath(name).read_text())


@pytest.mark.parametrize("name", KNOWN)
def test_every_gpu_of_the_contract_is_known(name):
    facts = read_gpu(name)
    assert facts.bf16_flop_per_s > 0
    assert 0 < facts.gemm_share < 1
    assert name == "cpu" or facts.memory_bytes > 35 << 30


def test_an_unknown_gpu_says_how_to_add_or_measure_it():
    with pytest.raises(SpecError, match=r"'H101' is not known; known: H100-SXM-80GB") as caught:
        read_gpu("H101")
    assert "peaks.toml" in caught.value.hint
    assert "sweep" in caught.value.hint
    with pytest.raises(SpecError, match=r"cluster.gpu \| missing"):
        read_gpu(None)


def test_every_row_of_facts_names_its_source():
    rows = [*table("peaks.toml").values()]
    rows += [row for key, row in table("kernels.toml").items() if key != "auto"]
    assert [row for row in rows if len(row["source"]) < 10] == []


def test_a_precision_without_units_is_refused():
    with pytest.raises(SpecError, match="A100-SXM-80GB has no fp8 units"):
        read_gpu("A100-SXM-80GB").peak_flop_per_s(Precision.FP8)
    assert read_gpu("H100-SXM-80GB").peak_flop_per_s(Precision.FP8) == 1978.9e12


def test_driver_names_lead_to_ours():
    assert gpu_of_driver("NVIDIA H100 80GB HBM3") == "H100-SXM-80GB"
    assert gpu_of_driver("NVIDIA A100-SXM4-40GB") == "A100-SXM-40GB"
    assert gpu_of_driver("NVIDIA RTX A6000") is None


@pytest.mark.parametrize(
    ("kernel", "causal", "tokens", "tflops"),
    [  # Dao-AILab/flash-attention flash3_fp16_fwd chart, H100, head dimension 128
        ("fa2", True, 1024, 260),
        ("fa2", True, 8192, 333),
        ("fa3", False, 2048, 625),
        ("fa3", True, 8192, 602),
        ("cudnn", True, 4096, 518),
    ],
)
def test_forward_curves_pass_near_published_points(kernel, causal, tokens, tflops):
    curve = read_curve("hopper", kernel, 128)
    assert curve.forward_flop_per_s(tokens, causal=causal) / 1e12 == pytest.approx(tflops, rel=0.08)


def test_a_backward_curve_passes_near_published_points():
    curve = read_curve("hopper", "fa3", 128)  # MagiAttention kernel chart
    for tokens, tflops in ((4096, 461), (8192, 517), (32768, 585)):
        rate = curve.backward_flop_per_s(tokens, causal=True)
        assert rate / 1e12 == pytest.approx(tflops, rel=0.08)


def test_auto_is_a_kernel_of_the_generation_and_head_dimensions_take_the_nearest():
    assert read_curve("hopper", "auto", 128) == read_curve("hopper", "cudnn", 128)
    assert read_curve("hopper", "fa2", 96) == read_curve("hopper", "fa2", 64)
    assert read_curve("hopper", "fa2", 112) == read_curve("hopper", "fa2", 128)


def test_a_kernel_without_a_rate_is_refused():
    with pytest.raises(SpecError, match="kernel 'fa3' has no measured rate on ampere; known: fa2"):
        read_curve("ampere", "fa3", 128)


def test_the_constants_carry_a_version():
    assert read_constants().version == "2026.3"
