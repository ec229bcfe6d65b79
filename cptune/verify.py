"""Candidates of a spec proven on their own, or planted faults that must be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from cptune.cluster.connection import LOCAL
from cptune.cluster.inventory import most_ranks
from cptune.cluster.session import joined_cluster, ready_for_calls
from cptune.domain.candidate import Candidate
from cptune.domain.proof import Proof, join_checks
from cptune.domain.stack import StackSpec
from cptune.domain.study import SweepSpec
from cptune.errors import SpecError
from cptune.proof.prove import prove_rank, self_test_jobs
from cptune.proving import case_of, prove
from cptune.search.cover import Cover, cover_pairs
from cptune.search.prepare import prepare
from topology.discover import discover
from topology.nouns import Topology
from topology.words import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The proofs of some candidates of a legal set; `cover` None: they were asked for by key."""

    proofs: tuple[Proof, ...]
    legal: int
    cover: Cover | None

    @property
    def passed(self) -> bool:
        """Whether every one of them passed."""
        return all(proof.passed for proof in self.proofs)

    def to_json(self) -> dict[str, object]:
        """What `cptune verify --format json` prints."""
        return {"proofs": [proof.to_json() for proof in self.proofs], "legal": self.legal}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """What became of a planted fault. `by` is the first check that refuses it, empty if none."""

    name: str
    fault: str
    rejected: bool
    by: str


def run_verify(
    spec: SweepSpec,
    *,
    keys: Sequence[str],
    most: int,
    address: str = LOCAL,
    on_proof: Callable[[Proof], None],
) -> Verified:
    """Prove candidates of a spec on as many ranks as it has, on host processors.

    Args:
        spec: Whose legal set the candidates are of.
        keys: The candidates; if none, a few that share out the pairs of axis values.
        most: How many of those at most.
        address: "local", or the address of a Ray cluster.
        on_proof: Told of every proof as it comes.

    Raises:
        SpecError: when the spec or a key is wrong; nothing was started.
        ClusterError: when the cluster cannot do it.
    """
    topology = discover() if address == LOCAL else None
    on_host = replace(spec, cluster=replace(spec.cluster, gpu="cpu"), stack=StackSpec())
    if topology is None and spec.cluster.world_size is None:
        raise SpecError(
            "cluster.world_size | missing, wanted the number of ranks to prove on",
            hint="set cluster.world_size, or leave --address out to use this machine",
        )
    if topology is not None:
        refuse_crowding(spec.cluster.world_size or 0, topology)
    prepared = prepare(on_host, topology)
    candidates = prepared.space.candidates
    cover = None if keys else cover_pairs(candidates, most=most)
    chosen = _of_keys(candidates, keys) if cover is None else cover.candidates
    world = prepared.spec.cluster.world_size or 0
    proofs = list[Proof]()
    with (
        joined_cluster(address, ranks=world) as (nodes, found),
        ready_for_calls(nodes=nodes, topology=found, ranks=world) as run,
    ):
        for candidate in chosen:
            proofs.append(prove(candidate, case_of(candidate, prepared.spec), run=run))
            on_proof(proofs[-1])
    return Verified(proofs=tuple(proofs), legal=len(candidates), cover=cover)


def run_self_test(
    *, address: str = LOCAL, on_rejection: Callable[[Rejection], None]
) -> tuple[Rejection, ...]:
    """Plant every fault, one by one, on four ranks; all must be refused.

    Raises:
        ClusterError: when the cluster cannot do it, or a fault ends a rank instead of an answer.
    """
    from cptune.proof.mutants import SELF_TEST_RANKS, find_mutant

    rejections = list[Rejection]()
    with (
        joined_cluster(address, ranks=SELF_TEST_RANKS) as (nodes, found),
        ready_for_calls(nodes=nodes, topology=found, ranks=SELF_TEST_RANKS) as run,
    ):
        for job in self_test_jobs():
            checks = join_checks(run(prove_rank, job, ranks=SELF_TEST_RANKS))
            failed = [check for check in checks if not check.passed]
            rejections.append(
                Rejection(
                    name=job.mutant,
                    fault=find_mutant(job.mutant).fault,
                    rejected=bool(failed),
                    by=failed[0].name if failed else "",
                )
            )
            on_rejection(rejections[-1])
    return tuple(rejections)


def self_test_json(rejections: Sequence[Rejection]) -> dict[str, object]:
    """What `cptune verify --self-test --format json` prints."""
    return {"mutants": [asdict(one) for one in rejections]}


def refuse_crowding(world_size: int, topology: Topology) -> None:
    """Refuse more ranks than this machine can start in reasonable time.

    Raises:
        SpecError: with the number that it can, and the way out.
    """
    most = most_ranks(topology)
    if world_size > most:
        raise SpecError(
            f"cluster.world_size | {world_size} ranks are too many for the processors of this "
            f"machine; wanted {most} or fewer",
            hint="give --address of a Ray cluster that has the ranks, or a spec of fewer: what "
            "is proven of a layout does not depend on how often dp repeats it",
        )


def _of_keys(candidates: Sequence[Candidate], keys: Sequence[str]) -> list[Candidate]:
    known = {candidate.key: candidate for candidate in candidates}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise SpecError(
            "\n".join(
                f"--candidate | {key!r} is none of the {len(known)} legal candidates of the spec"
                f"{suggestion(key, known)}"
                for key in unknown
            ),
            hint="the keys of a run are in the column candidate_key of its trials",
        )
    return [known[key] for key in dict.fromkeys(keys)]
