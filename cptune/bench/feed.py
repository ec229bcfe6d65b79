"""What one rank is fed: its samples of each step, planned before the step is timed, and a count."""

from __future__ import annotations

from cptune.bench.batch import Sample, load_sample, sample_hash
from cptune.bench.job import RankJob
from cptune.bench.packs import Packs, PlannedWork


class Feed:
    """The samples of one data-parallel group.

    Args:
        job: Which batch.
        packs: Where the plans of their documents are kept.
        ids: The samples, the same in every step.
    """

    def __init__(self, job: RankJob, *, packs: Packs, ids: range) -> None:
        self._job, self._packs, self._ids = job, packs, ids
        #: The hash of the samples of the first step.
        self.first_hash = ""
        self.restart_count()

    def restart_count(self) -> None:
        """Count what is planned from here on."""
        #: What the plans of all samples since the last restart say, for one layer.
        self.planned = PlannedWork(pairs=0, forward_sent_bytes=0, backward_sent_bytes=0)

    def samples(self, step: int) -> list[Sample]:
        """The samples of a step."""
        job = self._job
        found = [
            load_sample(
                sample,
                step=step,
                seed=job.seed,
                workload=job.workload,
                vocab=job.model.vocab,
                lengths=job.lengths,
            )
            for sample in self._ids
        ]
        if step == 0:
            self.first_hash = sample_hash(self._ids, found)
        packs = [sample.docs for sample in found]
        self._packs.prepare(packs)
        self.planned += self._packs.work(packs)
        return found
