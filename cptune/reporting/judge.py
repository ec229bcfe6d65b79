"""The trials of a run judged again as its sweep judges them, beside the recipe that it kept.

The ledger is the truth: what recipe.json says otherwise is a sentence on the page.
"""

from __future__ import annotations

from dataclasses import replace

from cptune.balance.expected import expect_load
from cptune.domain.recipe import Recipe
from cptune.domain.rules import Setting
from cptune.domain.workload import FULL_LENGTHS, AttentionMask
from cptune.errors import CptuneError, SpecError
from cptune.predict.found import trial_machine
from cptune.predict.trials import TrialPredictor
from cptune.recipe.beside_trials import contradictions, read_back
from cptune.report.run import RunState
from cptune.report.summary import Judged
from cptune.reporting.disk import Disk
from cptune.search.choose import Choice, Limits, Verdict, choose
from cptune.search.expected import Expect, ExpectSteps, as_measured
from cptune.search.space import build_space, explicit
from cptune.store.balance import open_lengths
from cptune.store.proofs import read_proof
from topology.errors import TopologyError


def capacity_bytes(disk: Disk) -> int | None:
    """What a rank may hold: as the spec, the recipe or else the smallest device says."""
    if disk.spec.cluster.device_memory_bytes:
        return disk.spec.cluster.device_memory_bytes
    recipe = disk.recipe or {}
    told = recipe.get("simulation", recipe.get("measurement"))
    if isinstance(told, dict) and isinstance(told.get("capacity_bytes"), int):
        return told["capacity_bytes"]
    places = [place for trial in disk.trials for place in trial.placement.ranks]
    sizes = [one.device.memory_bytes for one in places if one.device.memory_bytes is not None]
    return min(sizes, default=None)


def judge(disk: Disk, capacity: int) -> Choice | None:
    """The choice by the trials; None where there are none, or the legal set cannot be made."""
    if not disk.trials:
        return None
    spec, world_size = disk.spec, disk.trials[0].candidate.layout.world_size
    seqs = spec.workload.global_batch_seqs
    axes = explicit(spec.axes, world_size=world_size, global_batch_seqs=seqs)
    setting = Setting(model=spec.model, workload=spec.workload, world_size=world_size)
    limits = Limits(
        capacity_bytes=capacity,
        memory_margin=spec.cluster.memory_margin,
        objective=spec.objective,
        expect=_expect(disk, capacity),
        ci_share=spec.budget.ci_share,
    )
    try:
        return choose(disk.trials, build_space(axes, setting), limits)
    except (SpecError, ValueError) as exc:
        disk.doubts.append(f"the trials cannot be judged again: {exc}")
        return None


def _expect(disk: Disk, capacity: int) -> Expect:
    """What the sweep compared trials by: where documents make groups uneven, no single batch."""
    spec, world_size = disk.spec, disk.trials[0].candidate.layout.world_size
    if spec.workload.lengths == FULL_LENGTHS or spec.workload.mask is not AttentionMask.DOCUMENT:
        return as_measured
    try:
        if disk.topology is None:
            raise SpecError("the topology is lost")
        load = expect_load(spec.workload, world_size=world_size, open_file=open_lengths)
        cluster = replace(spec.cluster, world_size=world_size)
        machine = trial_machine(cluster, disk.topology, capacity_bytes=capacity)
        predictor = TrialPredictor(spec, machine=machine, documents=load)
        predictor.learn(disk.trials)
    except CptuneError as exc:
        disk.doubts.append(f"trials are compared as measured, not over many batches: {exc}")
        return as_measured
    if load is None:
        return as_measured
    return ExpectSteps(documents=load, attention_share=predictor.attention_share)


def kept_recipe(disk: Disk, choice: Choice | None, capacity: int | None) -> Recipe | None:
    """The recipe that the run kept, with the figures of its trials, which may contradict it."""
    content = disk.recipe
    if content is None:
        return None
    key = content.get("candidate_key")
    verdict = _verdict_of(choice, key)
    seen = None if verdict is None else verdict.trial.measurement
    if choice is None or verdict is None or seen is None or capacity is None:
        disk.doubts.append(f"recipe.json names {key}, of which no measured trial can be read")
        return None
    try:
        recipe = read_back(
            content,
            spec=disk.spec,
            trial=verdict.trial,
            measurement=seen,
            capacity_bytes=capacity,
        )
        wrong = [*contradictions(content, recipe), *_why_other_choice(recipe, choice, verdict)]
    except (TopologyError, KeyError, TypeError, ValueError, AttributeError) as exc:
        why = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        disk.doubts.append(f"recipe.json is no recipe: {why}")
        return None
    wrong += _why_other_proof(disk, recipe)
    if wrong:
        disk.doubts.append(f"recipe.json contradicts the run: {'; '.join(wrong)}")
    return recipe


def _why_other_choice(recipe: Recipe, choice: Choice, verdict: Verdict) -> list[str]:
    """Where the trials, judged again, say other than the recipe: who is chosen, and why not others.

    Reasons are not compared: another version words them otherwise.
    """
    key = recipe.candidate.key
    if choice.trial is not verdict.trial:
        now = "nothing" if choice.trial is None else choice.trial.candidate.key
        return [f"it names {key}, by its trials {now} would be chosen"]
    told = {control.candidate_key: control.verdict for control in recipe.controls}
    found = {control.candidate_key: control.verdict for control in choice.controls}
    wrong = [f"it does not know {one}" for one in found if one not in told]
    wrong += [
        f"{one} is {told[one]} in recipe.json, {found[one]} by its trials"
        for one in found
        if told.get(one, found[one]) != found[one]
    ]
    said = {entry.cp: entry.evidence or "OPEN" for entry in recipe.certificate}
    for entry in choice.certificate:
        ours = entry.evidence or "OPEN"
        if said.get(entry.cp) != ours:
            theirs = said.get(entry.cp, "absent")
            wrong.append(f"CP={entry.cp} is {theirs} in recipe.json, {ours} by its trials")
    if recipe.fingerprints.get("convergence") != verdict.trial.convergence_fingerprint:
        wrong.append("its convergence fingerprint is not that of its trials")
    return wrong


def _why_other_proof(disk: Disk, recipe: Recipe) -> list[str]:
    """Why the recipe's proof is not the one that the run made; runs of before proofs have none."""
    if recipe.proof is None:
        return []
    execution = recipe.fingerprints.get("execution", "")
    if read_proof(disk.directory, recipe.candidate.key, execution=execution) == recipe.proof:
        return []
    return [f"its proof is not that of proofs/{recipe.candidate.key}.json, as this run made it"]


def _verdict_of(choice: Choice | None, key: object) -> Verdict | None:
    verdicts = () if choice is None else choice.verdicts
    return next((one for one in verdicts if one.trial.candidate.key == key), None)


def so_far_recipe(
    disk: Disk, choice: Choice | None, capacity: int | None, *, state: RunState
) -> Recipe | None:
    """What would be chosen of the trials as they are; nothing tells the versions before the end."""
    trial = None if choice is None else choice.trial
    if disk.recipe is not None and state is not RunState.FINISHED:
        key = disk.recipe.get("candidate_key")
        disk.doubts.append(f"recipe.json, which names {key}, is of an earlier end of this run")
    if trial is None or choice is None or trial.measurement is None or capacity is None:
        return None
    execution = trial.execution_fingerprint
    return Recipe(
        spec=disk.spec,
        candidate=trial.candidate,
        placement=trial.placement,
        measurement=trial.measurement,
        predicted=trial.predicted,
        capacity_bytes=capacity,
        certificate=choice.certificate,
        controls=choice.controls,
        versions={},
        fingerprints={"convergence": trial.convergence_fingerprint, "execution": execution},
        commands=(),
        launcher=trial.launcher,
        proof=read_proof(disk.directory, trial.candidate.key, execution=execution),
    )


def judged(disk: Disk, choice: Choice | None, *, kept: Recipe | None) -> tuple[Judged, ...]:
    """One a candidate, in the words of the kept recipe where there is one."""
    if choice is None:
        latest = {trial.candidate.key: trial for trial in disk.trials}
        return tuple(
            Judged(trial=trial, word=trial.kind.value, reason=trial.reason)
            for trial in latest.values()
        )
    said = {} if kept is None else {one.candidate_key: one for one in kept.controls}
    found: list[Judged] = []
    for verdict in sorted(choice.verdicts, key=lambda one: one.trial.number):
        key = verdict.trial.candidate.key
        control = said.get(key)
        word, reason = verdict.word, verdict.reason
        if control is not None:
            word, reason = control.verdict, control.reason
        elif kept is not None and key == kept.candidate.key:
            word = "chosen"
        near = verdict is choice.nearest
        found.append(Judged(trial=verdict.trial, word=word, reason=reason, is_nearest=near))
    return tuple(found)
