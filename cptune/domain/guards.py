"""What a measurement must keep to before it counts: same maths as the others, and CP really on."""

from __future__ import annotations

from math import isfinite

from cptune.domain.candidate import Candidate, Recompute
from cptune.domain.layout import Axis, ParallelLayout
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.domain.trial import Trial

#: Of the way from what a shard keeps (1) to what the whole context would (cp).
_SHARDED = 0.5
#: Of what an attention call should keep: with less, it is computed again in backward.
_KEPT = 0.5
#: fp32 sums in another order differ by about 1e-6; a wrong mask, position or batch by far more.
LOSS_TOLERANCE = 1e-4
GRAD_NORM_TOLERANCE = 1e-3
#: Bits of a batch hash; hashes of parts of a batch add up to that of the whole, modulo 2^bits.
BATCH_HASH_BITS = 64


def why_not_applied(measurement: Measurement, layout: ParallelLayout) -> Failure | None:
    """A failure when context parallelism was asked for and did not move what its plan says."""
    for report in measurement.ranks:
        if report.sent_bytes != report.planned_sent_bytes:
            return Failure(
                kind=OutcomeKind.NOT_APPLIED,
                message=f"rank {report.rank} sent {report.sent_bytes} bytes per step over cp "
                f"{layout.cp}, its plan {report.planned_sent_bytes}",
                rank=report.rank,
                node=report.node,
            )
    return _why_not_sharded(measurement, layout)


def _why_not_sharded(measurement: Measurement, layout: ParallelLayout) -> Failure | None:
    """A failure when a rank kept so much for backward that its context cannot have been cut.

    At equal tokens what an attention call keeps, and the peak of all that is kept, shrink by 1/cp.
    The bound lies half-way to the unsharded bytes, far from what torch holds on to beside them.
    """
    bound = 1 + _SHARDED * (layout.cp - 1)
    for report in measurement.ranks:
        kept = report.kept
        if layout.cp == 1 or kept is None:
            continue
        for what, seen, planned in (
            ("in one attention call", kept.attention_bytes, kept.planned_attention_bytes),
            ("at its peak", kept.peak_bytes, kept.planned_peak_bytes),
        ):
            if seen > bound * planned:
                return Failure(
                    kind=OutcomeKind.NOT_APPLIED,
                    message=f"rank {report.rank} kept {seen} bytes for backward {what}, "
                    f"{seen / planned:.2f} times what a shard of cp {layout.cp} keeps "
                    f"({planned}); wanted at most {bound:g} times",
                    rank=report.rank,
                    node=report.node,
                )
    return None


def why_other_recompute(measurement: Measurement, candidate: Candidate) -> Failure | None:
    """A failure when a rank computed attention again in backward, or did not, unlike its candidate.

    Attention that is computed again keeps nothing for backward, any other all that its plan says:
    a peak that is low for the one reason is no evidence for the other.
    """
    wanted = candidate.recompute is Recompute.FULL
    for report in measurement.ranks:
        kept = report.kept
        if kept is None:
            continue
        again = kept.attention_bytes < _KEPT * kept.planned_attention_bytes
        if again != wanted:
            return Failure(
                kind=OutcomeKind.NOT_APPLIED,
                message=f"recompute is {candidate.recompute.value!r}, but rank {report.rank} "
                f"{'computed attention again in backward' if again else 'kept its attention'}: "
                f"{kept.attention_bytes} bytes of one call for backward, "
                f"{kept.planned_attention_bytes} where it is not computed again",
                rank=report.rank,
                node=report.node,
            )
    return None


def why_too_fast(
    measurement: Measurement, *, flop: float, peak_flop_per_s: float | None
) -> Failure | None:
    """A failure when the step did more FLOPs a second than the devices can: its time is wrong.

    Args:
        measurement: What was measured.
        flop: Model FLOPs of one step of the whole job.
        peak_flop_per_s: Of all devices together; None where it is not known.
    """
    if peak_flop_per_s is None or flop <= peak_flop_per_s * measurement.step_s:
        return None
    rate = flop / measurement.step_s if measurement.step_s > 0 else float("inf")
    return Failure(
        kind=OutcomeKind.WRONG_RESULT,
        message=f"{flop:.4g} FLOP in a step of {measurement.step_s:.4g} s are {rate:.4g} FLOP/s, "
        f"above the {peak_flop_per_s:.4g} FLOP/s that the devices can do",
    )


def why_unlike(measurement: Measurement, anchor: Trial | None) -> Failure | None:
    """A failure when the first step is not that of the anchor: same weights, same global batch.

    Without an anchor, a first step that is no number is still refused.
    """
    loss, norm = _first_step(measurement)
    if not (isfinite(loss) and isfinite(norm)):
        return Failure(
            kind=OutcomeKind.WRONG_RESULT,
            message=f"first loss is {loss:.8g} and first gradient norm {norm:.8g}; wanted finite "
            "numbers",
        )
    known = None if anchor is None else anchor.measurement
    if anchor is None or known is None:
        return None
    name = f"trial {anchor.number} ({anchor.candidate.describe()})"
    return why_other_start(measurement, known, name=name)


def why_other_start(measurement: Measurement, known: Measurement, *, name: str) -> Failure | None:
    """A failure when the first step is not that of a known measurement, called `name`."""
    (loss, norm), (known_loss, known_norm) = _first_step(measurement), _first_step(known)
    pairs = (
        ("loss", loss, known_loss, LOSS_TOLERANCE),
        ("gradient norm", norm, known_norm, GRAD_NORM_TOLERANCE),
    )
    for what, seen, wanted, tolerance in pairs:
        if abs(seen - wanted) > tolerance * abs(wanted):
            return Failure(
                kind=OutcomeKind.WRONG_RESULT,
                message=f"first {what} is {seen:.8g}, {name} has {wanted:.8g}; wanted them within "
                f"{tolerance:g} of each other, as weights and global batch are the same",
            )
    return None


def _first_step(measurement: Measurement) -> tuple[float, float]:
    """Loss and gradient norm of the first step."""
    loss, norm = measurement.first_loss, measurement.first_grad_norm
    assert loss is not None, "only what ran is compared"
    assert norm is not None, "only what ran is compared"
    return loss, norm


def why_unlike_batch(
    measurement: Measurement, layout: ParallelLayout, anchor: Trial | None = None
) -> Failure | None:
    """A failure when the samples of the first step, documents and text, are not those they must be.

    Equal on ranks that share a data-parallel index, and over the whole batch equal to the anchor's.
    """
    hashes = {report.rank: report.sample_hash for report in measurement.ranks}
    for axis in (Axis.TP, Axis.CP, Axis.PP):
        for group in layout.groups(axis):
            seen = {hashes[rank] for rank in group if rank in hashes}
            if len(seen) > 1:
                return Failure(
                    kind=OutcomeKind.WRONG_RESULT,
                    message=f"ranks {group} of one {axis} group trained on different samples",
                    rank=group[0],
                )
    if anchor is None or anchor.measurement is None:
        return None
    seen_hash = batch_hash(measurement, layout)
    wanted = batch_hash(anchor.measurement, anchor.candidate.layout)
    if seen_hash == wanted:
        return None
    return Failure(
        kind=OutcomeKind.WRONG_RESULT,
        message=f"the global batch (samples, documents and text) hashes to {seen_hash:016x}, that "
        f"of trial {anchor.number} ({anchor.candidate.describe()}) to {wanted:016x}; wanted the "
        "same batch for every candidate",
    )


def batch_hash(measurement: Measurement, layout: ParallelLayout) -> int:
    """The hash of the whole batch: the sum of what each data-parallel group held."""
    held = {layout.coordinates(one.rank).dp: one.sample_hash for one in measurement.ranks}
    return sum(int(one, 16) for one in held.values()) % (1 << BATCH_HASH_BITS)
