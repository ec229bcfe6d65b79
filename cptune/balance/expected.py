"""The load that a workload's documents are expected to make, for predictions and the choice.

Documents fill sequences as they come, cut at their ends; sequences go to data-parallel groups at
random. A context group shares its sequences, so that the groups alone decide, whatever CP is.
"""

from __future__ import annotations

import numpy as np

from cptune.balance.answer import OpenFile, read_histogram
from cptune.balance.histogram import Histogram
from cptune.balance.lengths import NAMES
from cptune.balance.simulate import Setting, sequential_times
from cptune.balance.theory import row_moments
from cptune.balance.work import Reals, Work, published_token_keys
from cptune.domain.documents import DocumentLoad, has_documents
from cptune.domain.workload import FULL_LENGTHS, Workload, divisors
from cptune.errors import SpecError

_DOCUMENTS = 2_000_000  # that the simulated sequences hold, about
_SEQUENCES = (256, 16_384)  # to simulate, at least and at most
_DRAWS = 1 << 19  # sequences that all steps hold, about
_STEPS = (32, 2048)  # to draw, at least and at most


def expect_load(workload: Workload, *, world_size: int, open_file: OpenFile) -> DocumentLoad | None:
    """The load of a workload; None where the mask leaves one document a sequence.

    Lengths that the mask does not use are read as well, so that what is wrong is said.

    Raises:
        SpecError: when the lengths are no file and no distribution, or the file is wrong.
    """
    if workload.lengths == FULL_LENGTHS:
        return None
    histogram = read_workload(workload, open_file=open_file)
    try:
        return load_of(histogram, workload, world_size=world_size)
    except SpecError as exc:
        raise _of_the_spec(exc) from exc


def read_workload(workload: Workload, *, open_file: OpenFile) -> Histogram:
    """The lengths that a spec names.

    Raises:
        SpecError: when they are no file and no distribution, or the file is wrong.
    """
    try:
        return read_histogram(workload.lengths, open_file=open_file)
    except SpecError as exc:
        raise _of_the_spec(exc) from exc


def _of_the_spec(exc: SpecError) -> SpecError:
    hint = f"wanted a column {' or '.join(NAMES)}" if "--column" in exc.hint else exc.hint
    return SpecError(f"workload.lengths | {exc}", hint=hint)


def load_of(histogram: Histogram, workload: Workload, *, world_size: int) -> DocumentLoad | None:
    """The load of documents with these lengths; None as for `expect_load`.

    The pairs of a sequence are the exact mean; the spread of the groups is counted out, the work
    of a document being that of `cptune balance`: its pairs and the published cost of its tokens.
    """
    if not has_documents(workload):
        return None
    batch = workload.global_batch_seqs
    groups = [size for size in divisors(batch) if size <= world_size]
    work = Work(token_keys=published_token_keys())
    rows = _sequence_work(histogram, seq_len=workload.seq_len, work=work)
    moments = row_moments(histogram, row_tokens=workload.seq_len, work=work)
    return DocumentLoad(
        pairs_per_sequence=moments.pairs_mean,
        pairs_share=moments.pairs_mean / (moments.pairs_mean + moments.fixed),
        slowest_over_mean=slowest_over_mean(rows, batch=batch, groups=groups),
    )


def slowest_over_mean(rows: Reals, *, batch: int, groups: list[int]) -> dict[int, float]:
    """The mean over steps of the slowest group over the mean one, by the number of groups.

    Args:
        rows: Work of sequences, from which steps are drawn, the same for every number of groups.
        batch: Sequences of a step.
        groups: Numbers of groups, each of which divides `batch`.
    """
    least, most = _STEPS
    steps = max(least, min(most, _DRAWS // batch))
    rng = np.random.default_rng(0)
    slowest = dict.fromkeys(groups, 0.0)
    for _ in range(steps):
        step = rows[rng.integers(0, len(rows), size=batch)]
        even = step.sum()
        for size in groups:
            slowest[size] += step.reshape(size, -1).sum(axis=1).max() * size / even
    return {size: max(1.0, float(total / steps)) for size, total in slowest.items()}


def _sequence_work(histogram: Histogram, *, seq_len: int, work: Work) -> Reals:
    least, most = _SEQUENCES
    count = max(least, min(most, int(_DOCUMENTS * histogram.mean_tokens / seq_len)))
    setting = Setting(world=count, tokens_per_gpu=seq_len, cps=(1,), work=work)
    documents = histogram.draw_tokens(setting.step_tokens, np.random.default_rng(0))
    return sequential_times(documents, setting=setting)[1].ravel()
