"""Host seconds where every collective is checked before it starts, as torch does when it debugs.

TORCH_DISTRIBUTED_DEBUG=DETAIL wraps process groups (ProcessGroupWrapper.cpp, runCollectiveChecks):
before each collective the host waits for a barrier that hears one rank after the other, and for two
all-gathers that go round the ranks, so a check takes a time for each rank of its group. Sends from
one rank to another are not checked. Kernels go on meanwhile: a layer lasts as long as the longer.
"""

from __future__ import annotations

from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.stack import TensorInputs
from cptune.predict.case import Case
from cptune.predict.rates import Passes
from cptune.predict.shares import micro_batches


def layer_checks(case: Case, candidate: Candidate) -> Passes:
    """Those of one layer and micro-batch, which the host waits for beside launching it.

    Tensor parallelism gathers or scatters four times each way, and twice more in backward where it
    kept no inputs whole; Ulysses and experts exchange twice each way.
    """
    lay = candidate.layout
    again = 0 if case.tp_inputs is TensorInputs.KEPT else 2
    others = 2 * _members(lay.ulysses) + 2 * _members(lay.ep)
    return Passes(
        forward=case.check_s * (4 * _members(lay.tp) + others),
        backward=case.check_s * ((4 + again) * _members(lay.tp) + others),
    )


def data_checks(case: Case, candidate: Candidate, *, layers: float) -> float:
    """Those of a step's data-parallel collectives; a bucket is about a layer.

    ddp reduces bucket by bucket. zero1 scatters and gathers all tensors in one call each
    (nanotron's `reduce_scatter_coalesced` and `all_gather_coalesced`), zero2 scatters in every
    micro-batch, fsdp gathers each layer twice and scatters it once in every micro-batch.
    """
    if not case.check_s:  # asked for every layout of a plan
        return 0.0
    batches = micro_batches(candidate, case.workload)
    checked = {
        DataParallelKind.DDP: layers,
        DataParallelKind.ZERO1: 2,
        DataParallelKind.ZERO2: batches + 1,
        DataParallelKind.FSDP: 3 * layers * batches,
    }[candidate.data_parallel]
    return case.check_s * checked * _members(candidate.layout.dp * candidate.layout.cp)


def _members(size: int) -> int:
    """Ranks that a check hears; a group of one rank exchanges nothing."""
    return size if size > 1 else 0
