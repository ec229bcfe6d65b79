"""Seconds of compute on one rank, by shape and device: products, attention, elementwise."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from cptune.domain.candidate import Candidate, ShardingKind
from cptune.domain.stack import Stack
from cptune.domain.workload import Mlp
from cptune.predict.case import Case
from cptune.predict.facts import read_curve
from cptune.predict.flops import ATTENTION_BACKWARD, attention_flop, is_causal
from cptune.predict.lengths import pairs_per_sequence, straggler_factor
from cptune.predict.shares import active_ffn, local_kv_heads, local_tokens
from cptune.predict.traffic import element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of the forward and of the backward of one layer and micro-batch."""

    forward: float
    backward: float

    def __add__(self, other: Passes) -> Passes:
        return Passes(forward=self.forward + other.forward, backward=self.backward + other.backward)

    def times(self, factor: float) -> Passes:
        """Both passes so many times as long."""
        return Passes(forward=self.forward * factor, backward=self.backward * factor)

    @property
    def both(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


def product_s(case: Case, rows: float, columns: float, depth: float) -> float:
    """One matrix product: the device's best rate, less on small shapes.

    Each dimension reaches half the rate at its own length (tiles that are not full, too few of
    them, a pipeline that does not fill).
    """
    fixed, gpu = case.constants, case.machine.gpu
    rate = gpu.peak_flop_per_s(case.workload.precision) * gpu.gemm_share * fixed.gemm_sustained
    slow = (
        (1 + fixed.gemm_half_rows / rows)
        * (1 + fixed.gemm_half_columns / columns)
        * (1 + fixed.gemm_half_depth / depth)
    )
    return 2.0 * rows * columns * depth * slow / rate


def layer_products(case: Case, candidate: Candidate) -> Passes:
    """Projections and feed-forward block of a layer; backward is two products for each."""
    model, tp = case.model, candidate.layout.tp
    rows = local_tokens(candidate, case.workload)
    heads = model.heads * model.head_dim / tp
    keys = local_kv_heads(model, tp) * model.head_dim
    forward = product_s(case, rows, heads + 2 * keys, model.hidden)
    forward += product_s(case, rows, model.hidden, heads)
    forward += _feed_forward_s(case, candidate, rows)
    return Passes(forward=forward, backward=2 * forward)


def _feed_forward_s(case: Case, candidate: Candidate, rows: float) -> float:
    """The dense block, or each local expert on its share of the tokens (evenly routed)."""
    model, lay = case.model, candidate.layout
    width, blocks = model.ffn / lay.tp, 1.0
    if model.experts:
        width, blocks = model.expert_ffn / lay.tp, model.experts / lay.ep
        rows = rows * model.experts_per_token / blocks
    up = width * (2 if model.mlp == Mlp.SWIGLU else 1)
    one = product_s(case, rows, up, model.hidden) + product_s(case, rows, model.hidden, width)
    return blocks * one


def layer_attention(case: Case, candidate: Candidate) -> Passes:
    """The attention kernel of the busiest rank, and the merges of its stages.

    Each merge rewrites an fp32 output: 10 bytes an element.
    """
    lay = candidate.layout
    merged = 10.0 * local_tokens(candidate, case.workload) * case.model.heads / lay.tp
    merged *= case.model.head_dim
    merges = candidate.stages * (
        case.constants.stage_launch_s + merged / streaming_bytes_per_s(case)
    )
    slowest = _kernel(case, candidate).times(straggler_factor(case.documents, groups=lay.dp))
    return slowest + Passes(forward=merges, backward=merges)


def attention_waited(case: Case, candidate: Candidate) -> Passes:
    """Of `layer_attention`, what the mean data-parallel group waits for the slowest one."""
    factor = straggler_factor(case.documents, groups=candidate.layout.dp)
    return _kernel(case, candidate).times(factor - 1)


def _kernel(case: Case, candidate: Candidate) -> Passes:
    """The busiest rank of the mean data-parallel group."""
    model, lay, workload = case.model, candidate.layout, case.workload
    kernel = case.kernel_of(candidate)
    curve = read_curve(case.machine.gpu.generation, kernel, model.head_dim)
    causal = is_causal(workload)
    length = workload.seq_len / lay.ring
    pairs = candidate.micro_batch * pairs_per_sequence(workload, case.documents)
    flop = attention_flop(model, pairs / lay.cp / lay.tp) * imbalance(case, candidate)
    return Passes(
        forward=flop / curve.forward_flop_per_s(length, causal=causal),
        backward=ATTENTION_BACKWARD * flop / curve.backward_flop_per_s(length, causal=causal),
    )


def imbalance(case: Case, candidate: Candidate) -> float:
    """Attention work of the busiest context rank over the mean.

    Causal: even under zigzag, 2 - 1/cp when contiguous. Documents of up to a quarter of the
    sequence, measured on draws: 1.8 (zigzag) and 2.3 (contiguous) at cp 8, 1.9 and 2.8 at cp 16,
    under 1.01 when balanced by area.
    """
    lay = candidate.layout
    contiguous = candidate.sharding is ShardingKind.CONTIGUOUS
    if lay.cp == 1 or candidate.sharding is ShardingKind.BALANCED:
        return 1.0
    if lay.ring == 1 or not is_causal(case.workload):
        return 1.0
    if case.documents is not None:
        return 1 + (0.44 if contiguous else 0.25) * log2(lay.ring)
    return 2 - 1 / lay.ring if contiguous else 1.0


def streaming_bytes_per_s(case: Case) -> float:
    """What an elementwise kernel reaches."""
    return case.machine.gpu.hbm_bytes_per_s * case.constants.hbm_share


def layer_elementwise(case: Case, candidate: Candidate) -> Passes:
    """Norms, residuals, rotations and the activation, fused; in elements read and written.

    Forward: two norms 4h, two residual sums 6h, rotation 2(a+k)d, activation 3f (GELU 2f);
    backward about twice that.
    """
    model, tp = case.model, candidate.layout.tp
    rotated = 2 * model.head_dim * (model.heads / tp + local_kv_heads(model, tp))
    active = (3 if model.mlp == Mlp.SWIGLU else 2) * active_ffn(model) / tp
    elements = local_tokens(candidate, case.workload) * (10 * model.hidden / tp + rotated + active)
    eager = case.stack_of(candidate) is Stack.EAGER
    passes = case.constants.eager_passes if eager else 1.0
    seconds = elements * element_bytes(case) * passes
    seconds /= streaming_bytes_per_s(case)
    return Passes(forward=seconds, backward=2 * seconds)


def layer_host(case: Case, candidate: Candidate) -> Passes:
    """What a rank's own thread spends on the exchanges of a layer; on a GPU nothing of note.

    Four gathers or scatters of tensor parallelism each way, two all-to-alls of Ulysses each way,
    one message a stage of the ring forward and two backward.
    """
    lay = candidate.layout
    both = 4.0 * (lay.tp > 1) + 2.0 * (lay.ulysses > 1)
    ring = candidate.stages if lay.ring > 1 else 0
    one = case.machine.gpu.exchange_s
    return Passes(forward=one * (both + ring), backward=one * (both + 2 * ring))


def head_seconds(case: Case, candidate: Candidate) -> tuple[float, float]:
    """Products and elementwise seconds of the language-model head, forward and backward.

    A fused loss reads and writes about 22 bytes for each logit: bf16 logits, the fp32 copy, its
    softmax and the gradient. That of torch 40: the copy 6, log-softmax 12, the gradient of the
    picked logit 4, that of log-softmax 12, the cast back 6.
    """
    model, tp = case.model, candidate.layout.tp
    rows = local_tokens(candidate, case.workload)
    products = 3 * product_s(case, rows, model.vocab / tp, model.hidden)
    passed = 40.0 if case.stack_of(candidate) is Stack.EAGER else 22.0
    return products, passed * rows * model.vocab / tp / streaming_bytes_per_s(case)
