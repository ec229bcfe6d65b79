"""Most bytes that attention holds on one rank beside its inputs: a walk through its schedule.

It follows `staged`: what is in flight, the sums, and one block at a time with what its kernel says
that it allocates. Inputs are dense; of others, rows are copied to be sent.
"""

from collections.abc import Iterable, Iterator, Sequence

from cptune.attention.cost import PlanPeak, Seat, Widths
from cptune.attention.kernels.footprint import Footprint
from cptune.attention.slices import Slice
from cptune.attention.stages import Schedule, Stage


def count_peak(
    schedule: Schedule,
    *,
    whole: Widths,
    widths: Widths,
    local_len: int,
    seat: Seat | None,
    kernel: Footprint,
) -> PlanPeak:
    """Walk through both halves.

    Args:
        schedule: Of this rank.
        whole: All heads.
        widths: The heads that this rank attends.
        local_len: Rows of every rank, padding included.
        seat: Its place in a Ulysses group, if it has one.
        kernel: What a block allocates.
    """
    rows = local_len if seat is None else schedule.rows
    query = widths.heads * widths.head_dim
    keys = 2 * widths.kv_heads * widths.head_dim
    lse = rows * widths.heads * widths.sum_itemsize
    sums = rows * query * widths.sum_itemsize
    result = rows * query * widths.itemsize
    own = schedule.rows * keys
    last = result if widths.halves else 0
    forward = sums + lse + max(last, _most(_ahead(schedule, widths, kernel)))
    # The output and its log-sum-exp are kept for backward; then come the gradients of the inputs.
    held = result + lse + sums + own * widths.sum_itemsize
    gradients = local_len * keys * widths.itemsize + last if seat is None else 0
    backward = held + max(gradients, _most(_back(schedule, widths, kernel)))
    if seat is None:
        return PlanPeak(forward=forward, backward=backward)
    given = seat.own_rows * (whole.heads + 2 * whole.kv_heads) * whole.head_dim * whole.itemsize
    taken = result + own * widths.itemsize
    landing = taken * sum(seat.peer_rows) // max(1, schedule.rows)
    home = local_len * whole.heads * whole.head_dim * whole.itemsize  # of all heads
    ends = 2 * sums + lse + result + home
    return PlanPeak(
        forward=max(given + landing + taken, taken + max(forward, ends)),
        backward=taken + home + result + backward,
    )


def _most(found: Iterable[int]) -> int:
    return max(found, default=0)


def _ahead(schedule: Schedule, widths: Widths, kernel: Footprint) -> Iterator[int]:
    """Keys in flight and a block's result, at each stage of forward."""
    row = 2 * widths.kv_heads * widths.head_dim * widths.itemsize
    for held, slices in _steps(schedule, schedule.local):
        yield held * row + _most(_block_forward(one, widths, kernel) for one in slices)


def _back(schedule: Schedule, widths: Widths, kernel: Footprint) -> Iterator[int]:
    """Keys in flight, gradients on their way home, and a block's gradients, in backward."""
    element = 2 * widths.kv_heads * widths.head_dim
    flying = 0  # gradients posted by the stage before
    first = [one for one in schedule.local if not one.full]
    last = [one for one in schedule.local if one.full]
    for index, (held, slices) in enumerate(_steps(schedule, first)):
        stage = schedule.stages[index - 1] if index else None
        summed = stage.num_rows * element * widths.sum_itemsize if stage else 0
        flies = _wire_bytes(stage, widths) if stage else 0
        if stage and stage.source is not None:  # the sums that wait for what this one brings
            flying += schedule.stages[stage.source].num_rows * element * widths.sum_itemsize
        computing = summed + _most(_block_backward(one, widths, kernel) for one in slices)
        # The keys are gone when the gradients are sent; what is sent as it is needs no copy.
        as_is = not stage or stage.source is not None or widths.dkv_itemsize == widths.sum_itemsize
        sending = flies + summed * (not as_is)
        freed = stage.num_rows * element * widths.itemsize if stage else 0
        yield held * element * widths.itemsize + flying + max(computing, sending - freed)
        flying = flies
    yield flying + _most(_block_backward(one, widths, kernel) for one in last)


def _block_forward(one: Slice, widths: Widths, kernel: Footprint) -> int:
    """Its output and log-sum-exp, as they are merged; under a band they may come run by run."""
    wide = widths.sum_itemsize
    rows = (one.q_stop - one.q_start) * widths.heads
    made = rows * widths.head_dim * (wide if kernel.wide_out else widths.itemsize) + rows * wide
    made += _copies(one, widths)
    merging = made + rows * (3 * wide + 1)  # of both, two of weights, a mask
    if not one.band or kernel.band_rows is None:  # scores are gone before the output is there
        return max(merging, rows * wide + kernel.scores[0] * _scores(one, widths))
    run_rows, seen = _run(one, kernel.band_rows)
    masks = run_rows * seen * (widths.itemsize + 2)
    return max(merging, 2 * made, made + masks)


def _block_backward(one: Slice, widths: Widths, kernel: Footprint) -> int:
    """Its three gradients and the kernel's scratch; under a band also the parts of a run."""
    wide = widths.sum_itemsize
    queries, keys = _elements(one, widths)
    found = (queries + keys) * (wide if kernel.wide_gradients else widths.itemsize)
    found += _copies(one, widths) + kernel.scores[1] * _scores(one, widths)
    found += (kernel.query_sums * queries + kernel.row_sums * queries // widths.head_dim) * wide
    if kernel.wide_copies and widths.halves:
        found += (3 * queries + keys) * wide
    if not widths.spread and widths.kv_heads != widths.heads:
        found += kernel.key_sums * keys * wide
        found += kernel.expanded_keys * keys * widths.heads // widths.kv_heads * widths.itemsize
    if not one.band or kernel.band_rows is None:
        return found
    rows, seen = _run(one, kernel.band_rows)
    run = rows * seen + seen * keys // (one.kv_stop - one.kv_start)
    return found + run * wide + queries * wide


def _elements(one: Slice, widths: Widths) -> tuple[int, int]:
    """Elements of a block's queries, and of its keys and values."""
    queries = (one.q_stop - one.q_start) * widths.heads * widths.head_dim
    kv_heads = widths.heads if widths.spread else widths.kv_heads
    return queries, (one.kv_stop - one.kv_start) * 2 * kv_heads * widths.head_dim


def _scores(one: Slice, widths: Widths) -> int:
    """Bytes of a number for each query head and pair of a block, seen or not."""
    pairs = (one.q_stop - one.q_start) * (one.kv_stop - one.kv_start)
    return pairs * widths.heads * widths.sum_itemsize


def _copies(one: Slice, widths: Widths) -> int:
    """Keys and values once for each query head, where a kernel could not tell whose they are."""
    rows = (one.kv_stop - one.kv_start) * widths.spread
    return rows * 2 * widths.heads * widths.head_dim * widths.itemsize


def _run(one: Slice, most_rows: int) -> tuple[int, int]:
    """(rows, keys) of one run of rows, where a kernel goes through a band, each with a mask."""
    assert one.band, "a mask is made for a band"
    rows = min(one.q_stop - one.q_start, most_rows)
    return rows, min(one.q_stop - one.q_start, rows + sum(one.band))


def _wire_bytes(stage: Stage, widths: Widths) -> int:
    """Gradients sent and received for one stage."""
    rows = stage.num_rows + sum(one.num_rows for one in stage.send)
    width = widths.dkv_itemsize if stage.source is None else widths.sum_itemsize
    return rows * 2 * widths.kv_heads * widths.head_dim * width


def _steps(schedule: Schedule, local: Sequence[Slice]) -> Iterator[tuple[int, Sequence[Slice]]]:
    """(rows of keys held beside the own ones, blocks), for the own block and every stage."""
    stages = schedule.stages
    yield sum(_rows_held(one) for one in stages if one.post < 0), local
    for index, stage in enumerate(stages):
        handing_on = {one.source for at, one in enumerate(stages) if at >= index}
        live = [
            one
            for at, one in enumerate(stages)
            if one.post <= index and (at >= index or at in handing_on)
        ]
        yield sum(_rows_held(one) for one in live), stage.slices


def _rows_held(stage: Stage) -> int:
    """Rows that a stage brings, and copies of those that it sends where they have holes."""
    packed = sum(one.num_rows for one in stage.send if len(one.rows) > 1)
    return stage.num_rows + packed
