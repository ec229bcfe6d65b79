"""All drills, by section of the method; made without torch and Ray."""

from __future__ import annotations

from collections.abc import Sequence

from cptune.drills import edges, layouts, links, lost, proofs, records, resumed, silent, versions
from cptune.drills.finding import Drill
from cptune.errors import SpecError
from topology.words import suggestion

DRILLS: Sequence[Drill] = (
    Drill(
        name="silent-recompute",
        section="memory curve",
        failure="the target fits only because activations are computed again, which nobody asked",
        guard="cptune.domain.guards.why_other_recompute",
        provoke=silent.provoke,
        judge=silent.judge_recompute,
        comes_last=True,
    ),
    Drill(
        name="silent-batch",
        section="memory curve",
        failure="the target fits only because its ranks train on half of the batch",
        guard="cptune.domain.guards.why_unlike_batch",
        provoke=silent.provoke,
        judge=silent.judge_batch,
        comes_last=True,
    ),
    Drill(
        name="changed-spec",
        section="memory curve",
        failure="a run goes on with half of the batch and with recomputation, and then fits",
        guard="cptune.opening.open_run",
        judge=resumed.judge,
    ),
    Drill(
        name="slow-edge",
        section="topology",
        failure="a ring goes over a hop that is far slower than the topology promises",
        guard="cptune.domain.probe.Probe.below",
        provoke=edges.provoke,
        judge=edges.judge,
    ),
    Drill(
        name="exposed-cp",
        section="smallest degree",
        failure="the largest CP fits, and waits for its links most of the step",
        guard="cptune.search.choose.choose",
        provoke=links.provoke,
        judge=links.judge_largest,
    ),
    Drill(
        name="wrong-seam",
        section="equivalence",
        failure="positions are one late beyond a seam, and the loss looks similar",
        guard="cptune.domain.proof.why_wrong",
        provoke=proofs.provoke,
        judge=proofs.judge_seam,
    ),
    Drill(
        name="padding-attended",
        section="padding",
        failure="one shard attends to a row of padding",
        guard="cptune.domain.proof.why_wrong",
        provoke=proofs.provoke,
        judge=proofs.judge_padding,
    ),
    Drill(
        name="busy-link",
        section="exposed communication",
        failure="links that are busy nearly all of the step are taken for overlap",
        guard="cptune.bench.timeline.exposure",
        judge=links.judge_busy,
    ),
    Drill(
        name="local-win",
        section="other axes",
        failure="the layout with the cheapest context groups is slower as a whole",
        guard="cptune.search.choose.choose",
        judge=layouts.judge,
    ),
    Drill(
        name="changed-mask",
        section="versioning",
        failure="another version of a kernel aligns the causal mask otherwise",
        guard="cptune.recipe.requalify.conditions_of and cptune.domain.proof.why_wrong",
        provoke=proofs.provoke,
        judge=versions.judge,
    ),
    Drill(
        name="torn-ledger",
        section="records",
        failure="a file of a run was cut short, and one is of another run",
        guard="cptune.store.ledger.ParquetLedger.read",
        judge=records.judge,
    ),
    Drill(
        name="killed-rank",
        section="failures",
        failure="the process of one rank ends in the middle of a trial",
        guard="cptune.cluster.failures.failure_from",
        provoke=lost.provoke,
        judge=lost.judge,
    ),
    Drill(
        name="out-of-memory",
        section="failures",
        failure="a trial runs out of memory",
        guard="cptune.cluster.failures.failure_from",
        provoke=silent.provoke,
        judge=silent.judge_shortage,
        comes_last=True,
    ),
)


def find_drills(names: Sequence[str]) -> list[Drill]:
    """The drills of these names, all where there is none; in the order of the registry.

    Raises:
        SpecError: naming every name that is none, with the nearest.
    """
    known = [one.name for one in DRILLS]
    if unknown := [name for name in names if name not in known]:
        raise SpecError(
            "\n".join(f"no drill {name!r}{suggestion(name, known)}" for name in unknown),
            hint="cptune drill --list shows them all",
        )
    return [one for one in DRILLS if not names or one.name in names]
