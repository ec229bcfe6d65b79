"""The public class on one rank, where no process group exists, and what it refuses."""

import re
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from cptune.attention import ContextParallel

SHAPES_1 = {"q": (1, 6, 4, 8), "k": (1, 6, 2, 8), "v": (1, 6, 2, 8)}


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_one_rank_is_plain_attention_without_a_process_group() -> None:
    assert not dist.is_initialized()
    cp = ContextParallel(None, seq_len=6)
    q, k, v = (make(shape).requires_grad_() for shape in SHAPES_1.values())
    out = cp.attend(q, k, v)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(out, wanted)
    for mine, theirs in zip(
        torch.autograd.grad(out.sum(), (q, k, v)),
        torch.autograd.grad(wanted.sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_scale_replaces_the_default() -> None:
    cp = ContextParallel(None, seq_len=6, mask="full")
    q, k, v = (make(shape) for shape in SHAPES_1.values())
    torch.testing.assert_close(cp.attend(q, k, v, scale=8**-0.5), cp.attend(q, k, v))
    mean = v.mean(dim=1, keepdim=True).repeat_interleave(2, dim=2).expand(1, 6, 4, 8)
    torch.testing.assert_close(cp.attend(q, k, v, scale=1e-30), mean)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), "wide", [1.0]])
def test_a_scale_that_a_kernel_makes_nan_of_is_refused(scale) -> None:
    cp = ContextParallel(None, seq_len=6)
    q, k, v = (make(shape) for shape in SHAPES_1.values())
    with pytest.raises(ValueError, match="wanted a finite number above 0"):
        cp.attend(q, k, v, scale=scale)


def test_a_scale_that_is_learned_is_refused_and_not_left_without_its_gradient() -> None:
    q, k, v = (make(shape) for shape in SHAPES_1.values())
    with pytest.raises(ValueError, match="scale wants a gradient"):
        ContextParallel(None, seq_len=6).attend(q, k, v, scale=torch.ones((), requires_grad=True))


@pytest.mark.parametrize("kernel", ["cpu_flash", "math"])
def test_autocast_does_not_narrow_what_is_exact(kernel: str) -> None:
    cp = ContextParallel(None, seq_len=6, kernel=kernel)
    leaves = [make(shape).requires_grad_() for shape in SHAPES_1.values()]
    wanted = cp.attend(*leaves)
    with torch.autocast("cpu", torch.bfloat16):
        found = cp.attend(*leaves)
        gradients = torch.autograd.grad(found.sum(), leaves)
    assert torch.equal(found, wanted)
    for mine, theirs in zip(gradients, torch.autograd.grad(wanted.sum(), leaves), strict=True):
        assert torch.equal(mine, theirs)


def test_a_default_device_does_not_reach_into_attention() -> None:
    cp = ContextParallel(None, seq_len=6, window=2)
    tensors = [make(shape) for shape in SHAPES_1.values()]
    wanted = cp.attend(*tensors)
    with torch.device("meta"):
        assert torch.equal(cp.attend(*tensors), wanted)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_gradient(reentrant: bool) -> None:
    cp = ContextParallel(None, seq_len=6)
    leaves = [make(shape).requires_grad_() for shape in SHAPES_1.values()]
    wanted = torch.autograd.grad(cp.attend(*leaves).sum(), leaves)
    checkpoint(cp.attend, *leaves, use_reentrant=reentrant).sum().backward()
    for leaf, gradient in zip(leaves, wanted, strict=True):
        assert torch.equal(leaf.grad, gradient)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own
def test_a_compiled_model_attends_outside_of_its_graphs() -> None:
    cp = ContextParallel(None, seq_len=6)
    leaves = [make(shape).requires_grad_() for shape in SHAPES_1.values()]
    compiled = torch.compile(lambda q, k, v: 2 * cp.attend(3 * q, k, v), backend="eager")
    found = compiled(*leaves)
    wanted = 2 * cp.attend(3 * leaves[0], *leaves[1:])
    assert torch.equal(found, wanted)
    for mine, theirs in zip(
        *(torch.autograd.grad(one.sum(), leaves) for one in (found, wanted)), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_what_needs_no_gradient_gets_none_and_no_sequence_is_fine() -> None:
    cp = ContextParallel(None, seq_len=6)
    q, k, v = (make(shape) for shape in SHAPES_1.values())
    cp.attend(q, k, v.requires_grad_()).sum().backward()
    assert (q.grad, k.grad) == (None, None)
    assert v.grad is not None
    assert not cp.attend(q, k, v.detach()).requires_grad
    none = [make((0, *shape[1:])).requires_grad_() for shape in SHAPES_1.values()]
    cp.attend(*none).sum().backward()
    assert none[1].grad.shape == (0, 6, 2, 8)


def test_a_copy_of_a_module_uses_the_same_wires() -> None:
    cp = ContextParallel(None, seq_len=6)
    assert deepcopy({"cp": cp})["cp"].traffic is cp.traffic


def test_positions_valid_and_shards_of_one_rank_are_the_whole() -> None:
    cp = ContextParallel(None, seq_len=5)
    assert cp.positions.tolist() == [0, 1, 2, 3, 4]
    assert cp.positions.dtype == torch.int64
    assert cp.valid.tolist() == [True] * 5
    x = torch.arange(10).view(2, 5)
    assert torch.equal(cp.shard(x, dim=1), x)
    assert torch.equal(cp.unshard(x, dim=-1), x)


def test_attend_keeps_the_dtype_and_takes_gradients_of_any_layout() -> None:
    cp = ContextParallel(None, seq_len=6)
    q = make((1, 4, 6, 8), torch.bfloat16).transpose(1, 2).requires_grad_()
    k, v = (make((1, 6, 8, 2), torch.bfloat16).transpose(2, 3) for _ in range(2))
    out = cp.attend(q, k, v)
    out.sum().backward()
    assert out.dtype == torch.bfloat16
    assert q.grad is not None
    assert q.grad.dtype == torch.bfloat16


def test_a_second_derivative_is_refused() -> None:
    q, k, v = (make(shape).requires_grad_() for shape in SHAPES_1.values())
    out = ContextParallel(None, seq_len=6).attend(q, k, v)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_the_kernel_that_ran_is_readable() -> None:
    cp = ContextParallel(None, seq_len=6)
    assert cp.kernel == "auto"
    cp.attend(*(make(shape) for shape in SHAPES_1.values()))
    assert cp.kernel == "cpu_flash"
    assert ContextParallel(None, seq_len=6, kernel="math").kernel == "math"


def test_plan_bytes_are_bound_by_the_constructor_or_the_first_attend() -> None:
    promised = ContextParallel(None, seq_len=6, kv_heads=2, head_dim=8, dtype=torch.bfloat16)
    assert (promised.plan.kv_heads, promised.plan.head_dim, promised.plan.itemsize) == (2, 8, 2)
    cp = ContextParallel(None, seq_len=6)
    with pytest.raises(ValueError, match="kv_heads is not known"):
        cp.plan.bytes(0)
    cp.attend(*(make(shape) for shape in SHAPES_1.values()))
    assert (cp.plan.kv_heads, cp.plan.head_dim, cp.plan.itemsize) == (2, 8, 4)
    assert cp.plan.bytes(0).forward_sent == 0


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            {"sharding": "zig-zag"},
            "sharding is 'zig-zag', wanted one of contiguous, zigzag, balanced; did .*",
        ),
        (
            {"mask": "causl"},
            "mask is 'causl', wanted one of full, causal, document; did you mean 'causal'",
        ),
        (
            {"strategy": "p2p"},
            "strategy is 'p2p', wanted one of ring, all_gather, ulysses, hybrid$",
        ),
        ({"kernel": "flash"}, "kernel is 'flash', wanted one of auto, .*, cpu_flash, math"),
        ({"dkv_wire": "fp8"}, "dkv_wire is 'fp8', wanted one of scaled_fp16, bf16, fp32"),
        ({"nodes": ["a", "b"]}, "nodes names 2 ranks, wanted the 1 of the group"),
        ({"mask": "document"}, "docs is empty, wanted the documents' lengths"),
        ({"docs": [6]}, "docs are given with mask causal, wanted none or mask document"),
        ({"mask": "document", "docs": [2, 3]}, r"docs add up to 5 tokens, wanted seq_len = 6"),
        ({"mask": "document", "docs": [7, -1]}, "docs holds -1, wanted lengths from 0"),
        ({"mask": "full", "window": 3}, "window is 3, wanted None with mask full"),
        ({"window": -1}, "window is -1, wanted at least 0; nearest is 0"),
        ({"ulysses": 2}, "ulysses is 2, wanted 1 for strategy ring; nearest is 1"),
        ({"strategy": "ulysses", "ulysses": 2}, "ulysses is 2, wanted 1 or 1 .all ranks."),
        ({"strategy": "hybrid", "ulysses": 3}, "ulysses is 3, wanted a divisor of the 1 ranks"),
        ({"stages": 2}, "stages is 2, wanted None: one rank exchanges nothing"),
        ({"seq_len": 0}, "seq_len is 0, wanted a whole number from 1; nearest is 1"),
    ],
)
def test_wrong_arguments_are_named_with_the_nearest_legal_value(
    argument: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ContextParallel(None, **{"seq_len": 6} | argument)


def test_something_else_than_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="group is -100, wanted a process group of this rank"):
        ContextParallel(dist.GroupMember.NON_GROUP_MEMBER, seq_len=6)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1, 5, 4, 8)}, "q has 5 rows along dim 1, wanted local_len = 6"),
        ({"k": (1, 9, 2, 8), "v": (1, 9, 2, 8)}, "k has 9 rows along dim 1, wanted local_len = 6"),
        ({"q": (1, 6, 5, 8)}, "q has 5 heads, wanted a multiple of the 2 kv heads; nearest is 4"),
        ({"q": (1, 6, 1, 8)}, "q has 1 heads, wanted a multiple of the 2 kv heads; nearest is 2"),
        ({"v": (1, 6, 1, 8)}, "wanted k and v alike"),
        ({"q": (2, 6, 4, 8)}, "wanted equal batch and head_dim"),
        ({"q": (6, 4, 8)}, "wanted .batch, rows, heads, head_dim. each"),
        ({"q": (1, 6, 0, 8)}, "wanted at least one head, of one element"),
        (dict.fromkeys("qkv", (1, 6, 2, 0)), "wanted at least one head, of one element"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    cp = ContextParallel(None, seq_len=6)
    with pytest.raises(ValueError, match=message):
        cp.attend(*(make(shape) for shape in (SHAPES_1 | shapes).values()))


def test_what_is_no_tensor_or_lies_elsewhere_is_refused() -> None:
    cp = ContextParallel(None, seq_len=6)
    q, k, v = (make(shape) for shape in SHAPES_1.values())
    with pytest.raises(ValueError, match="k is a NoneType, wanted a tensor"):
        cp.attend(q, None, v)
    with pytest.raises(ValueError, match="devices are q cpu, k meta, v cpu, wanted one"):
        cp.attend(q, k.to("meta"), v)


def test_mixed_dtypes_are_refused() -> None:
    q, k, v = (make(shape) for shape in SHAPES_1.values())
    with pytest.raises(ValueError, match=r"k torch\.float64.*wanted one"):
        ContextParallel(None, seq_len=6).attend(q, k.double(), v)


@pytest.mark.parametrize(
    ("promise", "message"),
    [
        ({"kv_heads": 4}, "kv_heads is 2 in attend, wanted the 4 given to ContextParallel"),
        ({"head_dim": 16}, "head_dim is 8 in attend, wanted the 16"),
        ({"dtype": torch.bfloat16}, r"dtype is torch\.float32 in attend, wanted the torch\.bf"),
    ],
)
def test_a_broken_promise_is_refused(promise: dict[str, object], message: str) -> None:
    cp = ContextParallel(None, seq_len=6, **promise)
    with pytest.raises(ValueError, match=message):
        cp.attend(*(make(shape) for shape in SHAPES_1.values()))


def test_a_kernel_that_cannot_run_is_an_error_and_not_another_kernel() -> None:
    cp = ContextParallel(None, seq_len=6, kernel="cpu_flash")
    tensors = [torch.empty(shape, device="meta") for shape in SHAPES_1.values()]
    with pytest.raises(ValueError, match=r"'cpu_flash', which cannot run here .*not on meta"):
        cp.attend(*tensors)


@pytest.mark.parametrize(
    ("x", "dim", "message"),
    [
        ([1] * 6, 0, "x is a list, wanted a tensor"),
        (torch.zeros(6), 1, r"dim is 1, wanted one of the 1 of x: -1\.\.0"),
        (torch.zeros(2, 6), -3, r"dim is -3, wanted one of the 2 of x: -2\.\.1"),
    ],
)
def test_a_dim_that_is_not_there_is_refused(x, dim: int, message: str) -> None:
    cp = ContextParallel(None, seq_len=6)
    for call in (cp.shard, cp.unshard):
        with pytest.raises(ValueError, match=message):
            call(x, dim)


def test_shard_wants_the_whole_sequence() -> None:
    with pytest.raises(ValueError, match="x has 5 rows along dim 0, wanted seq_len = 6"):
        ContextParallel(None, seq_len=6).shard(torch.zeros(5), dim=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seq_len": 2.5}, "seq_len is 2.5, wanted a whole number"),
        ({"seq_len": float("nan")}, "seq_len is nan"),
        ({"seq_len": "8"}, "seq_len is '8'"),
        ({"seq_len": None}, "seq_len is None"),
        ({"seq_len": 8, "window": 1.5}, "window is 1.5"),
        ({"seq_len": 8, "stages": 1.0}, "stages is 1.0"),
        ({"seq_len": 8, "ulysses": None}, "ulysses is None"),
        ({"seq_len": 8, "mask": "document", "docs": [4.5, 3.5]}, "a length in docs is 4.5"),
        ({"seq_len": 8, "mask": "document", "docs": [True, 7]}, "a length in docs is True"),
        ({"seq_len": 8, "mask": "document", "docs": 8}, "docs is 8, wanted the lengths"),
        ({"seq_len": 8, "mask": 3}, "mask is 3, wanted one of"),
        ({"seq_len": 8, "dkv_wire": torch.bfloat16}, "dkv_wire is torch.bfloat16, wanted one of"),
    ],
)
def test_what_is_no_whole_number_or_no_word_is_refused(given, said) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        ContextParallel(None, **given)


def test_integers_of_other_libraries_are_integers() -> None:
    cp = ContextParallel(None, seq_len=np.int64(8), mask="document", docs=torch.tensor([4, 4]))
    assert cp.positions.tolist() == [0, 1, 2, 3] * 2
