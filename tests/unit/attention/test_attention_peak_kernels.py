"""The peak of a plan follows the kernel: each says what it allocates beside its inputs."""

import pytest
import torch

from cptune.attention import ContextParallel, PlanPeak
from cptune.attention.kernels import KERNELS
from cptune.bench.memory import TensorBudget

ROWS, HEADS, KV_HEADS, DIM = 1024, 8, 2, 64
Q, KV, EACH = ROWS * HEADS * DIM, 2 * ROWS * KV_HEADS * DIM, ROWS * HEADS  # elements
SIZES = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM}
HALF, WIDE = 2, 4  # bytes


def peak_of(kernel: str, *, kv_heads: int = KV_HEADS) -> PlanPeak:
    sizes = SIZES | {"kv_heads": kv_heads, "dtype": torch.bfloat16}
    return ContextParallel(None, seq_len=ROWS, **sizes).plan.peak_bytes(0, kernel=kernel)


# What one block allocates in backward, in bf16, eight heads over two.
SCRATCH = {
    "flash_attn_3": (Q + KV) * HALF + Q * WIDE + 2 * EACH * WIDE + KV * WIDE,
    "flash_attn_4": (Q + KV) * HALF + Q * WIDE + 2 * EACH * WIDE + KV * WIDE,
    "flash_attn_2": (Q + KV) * HALF + Q * WIDE + EACH * WIDE + 4 * KV * HALF,
    "cuda_flash": (Q + KV) * HALF + Q * WIDE + EACH * WIDE + 4 * KV * HALF,
    "cpu_flash": (Q + KV) * WIDE + (3 * Q + KV) * WIDE,
    "math": (Q + KV) * WIDE + (3 * Q + KV) * WIDE + 6 * ROWS * EACH * WIDE,
}


@pytest.mark.parametrize("kernel", SCRATCH)
def test_backward_holds_what_the_kernel_makes(kernel: str) -> None:
    # Output, log-sum-exp and the sums of all three gradients live through it.
    kept = Q * HALF + EACH * WIDE + (Q + KV) * WIDE
    assert peak_of(kernel).backward == kept + SCRATCH[kernel]


def test_every_kernel_is_in_the_table() -> None:
    assert SCRATCH.keys() == {one.name for one in KERNELS}


@pytest.mark.parametrize("kernel", SCRATCH)
def test_forward_holds_the_sums_and_one_result_as_the_kernel_makes_it(kernel: str) -> None:
    width = WIDE if kernel == "math" else HALF
    merging = Q * width + EACH * (4 * WIDE + 1)
    scores = EACH * WIDE + 3 * ROWS * EACH * WIDE if kernel == "math" else 0
    assert peak_of(kernel).forward == Q * WIDE + EACH * WIDE + max(merging, scores)


def test_equal_heads_need_no_gradients_for_every_query_head() -> None:
    keys = 2 * ROWS * HEADS * DIM
    for kernel, rows in (("flash_attn_2", 1), ("flash_attn_3", 2)):
        kept = Q * HALF + EACH * WIDE + (Q + keys) * WIDE
        made = (Q + keys) * HALF + Q * WIDE + rows * EACH * WIDE
        assert peak_of(kernel, kv_heads=HEADS).backward == kept + made


def measure(kernel: str, dtype: torch.dtype, **mask) -> list[tuple[int, int]]:
    """(measured, planned) of forward and backward."""
    cp = ContextParallel(None, seq_len=256, kernel=kernel, **mask)
    shapes = [(1, 256, heads, 32) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    with TensorBudget(1 << 40) as memory:
        q, k, v, dout = (torch.zeros(shape, dtype=dtype) for shape in shapes)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        before = memory.live_bytes
        with memory.phase("forward"):
            out = cp.attend(*inputs)
        with memory.phase("backward"):
            torch.autograd.grad(out, inputs, dout)
    planned = cp.plan.peak_bytes(0)
    return [
        (memory.peak_bytes[half] - before, getattr(planned, half))
        for half in ("forward", "backward")
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "near"), [("cpu_flash", 0.001), ("math", 0.06)])
def test_what_runs_here_is_foreseen(kernel: str, near: float, dtype: torch.dtype) -> None:
    for measured, planned in measure(kernel, dtype):
        assert planned == pytest.approx(measured, rel=near)


def test_a_kernel_that_nobody_chose_is_not_guessed() -> None:
    cp = ContextParallel(None, seq_len=8, **SIZES, dtype=torch.float32)
    with pytest.raises(ValueError, match="kernel is not known, wanted the name of one"):
        cp.plan.peak_bytes(0)
    with pytest.raises(ValueError, match="kernel is 'auto', wanted one of flash_attn_3"):
        cp.plan.peak_bytes(0, kernel="auto")
    cp.attend(*(torch.zeros(1, 8, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)))
    assert cp.plan.kernel == "cpu_flash"
    asked = ContextParallel(None, seq_len=8, **SIZES, dtype=torch.float32, kernel="math")
    assert asked.plan.peak_bytes(0).backward > cp.plan.peak_bytes(0).backward
