"""From a spec to something that can be tried: every refusal that needs no process is made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cptune.domain.candidate import Candidate
from cptune.domain.devices import DeviceKind, kind_of_trials
from cptune.domain.rules import Setting, Violation, why_unsupported
from cptune.domain.stack import Stack, StackSpec
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.domain.trial import Trial
from cptune.domain.units import bytes_text
from cptune.domain.workload import ModelShape
from cptune.errors import SpecError
from cptune.search.devices import gpu_count, settle_devices
from cptune.search.sampler import check_storage
from cptune.search.space import SearchSpace, build_space, choose_baseline, explicit
from topology.nouns import Topology

_IDLE_RANK_BYTES = 320 << 20  # resident size of a warm actor with torch imported, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A spec that passed every check that needs no process."""

    spec: SweepSpec
    space: SearchSpace
    baseline: Candidate


def prepare(spec: SweepSpec, topology: Topology | None) -> Prepared:
    """Resolve the spec on a topology, enumerate the legal set and refuse what cannot be tried.

    Raises:
        SpecError: with every problem found.
    """
    resolved = resolve(spec, topology)
    check_storage(resolved.storage.study)
    setting = _setting(resolved)
    if unsupported := why_unsupported(setting):
        raise SpecError("\n".join(f"{_key(one)} | {one.message}" for one in unsupported))
    space = build_space(resolved.axes, setting)
    return Prepared(
        spec=resolved, space=space, baseline=choose_baseline(space, resolved.baseline, setting)
    )


def narrow(prepared: Prepared, only: Candidate | None) -> Prepared:
    """The same with one candidate of its legal set alone; as it is for None.

    Raises:
        SpecError: when that candidate is not legal here.
    """
    if only is None:
        return prepared
    legal = [one for one in prepared.space.candidates if one.key == only.key]
    if not legal:
        raise SpecError(
            f"{only.key} is not legal on {prepared.space.world_size} ranks here: "
            + ("; ".join(prepared.space.reasons) or "the axes do not hold it")
        )
    space = replace(prepared.space, candidates=tuple(legal))
    return replace(prepared, space=space, baseline=legal[0])


def _key(violation: Violation) -> str:
    """The key of sweep.toml that a rule of `why_unsupported` is about."""
    name = violation.rule.rpartition(" ")[2]
    return f"{'model' if name in ModelShape.__dataclass_fields__ else 'workload'}.{name}"


def resolve(spec: SweepSpec, topology: Topology | None) -> SweepSpec:
    """The spec with the world size and every list of the axes written out.

    Raises:
        SpecError: when the devices found cannot be used.
    """
    world = spec.cluster.world_size
    if topology is not None:
        spec = settle_devices(spec, topology)
        if kind_of_trials(spec.cluster, topology) is DeviceKind.CUDA:
            world = world or gpu_count(topology)
        else:
            world = world or sum(node.cpus or 1 for node in topology.nodes)
            _refuse_crowding(world, topology)
    assert world is not None, "without a world size the topology is known"
    axes = explicit(spec.axes, world_size=world, global_batch_seqs=spec.workload.global_batch_seqs)
    cluster = replace(spec.cluster, world_size=world)
    return replace(spec, cluster=cluster, stack=trial_stack(spec.stack), axes=axes)


def trial_stack(asked: StackSpec) -> StackSpec:
    """The stack of the trials, whose every part the spec may say and none may contradict.

    A spec that says nothing, as one kept before there was a `[stack]`, means this one.

    Raises:
        SpecError: when the spec asks for another one.
    """
    trials = StackSpec(kind=Stack.EAGER)
    wrong = [
        f"stack.{name} | {seen}, but trials run torch modules and deal layers evenly; "
        f"nearest legal: {getattr(trials, name)}"
        for name in ("kind", "kernel", "pipeline")
        if (seen := getattr(asked, name)) not in (None, getattr(trials, name))
    ]
    wrong += [
        f"stack.{name} | {seen}, but trials measure what they hold and wait for; "
        "nearest legal: leave it out"
        for name in ("tp_inputs", "check_s")
        if (seen := getattr(asked, name)) != getattr(trials, name)
    ]
    if wrong:
        raise SpecError("\n".join(wrong), hint="another stack can be planned with `cptune plan`")
    return trials


def refuse_other_batch(trials: Sequence[Trial], stamp: Stamp) -> None:
    """Refuse to go on with trials of another batch: the spec is the same, its file of lengths not.

    Raises:
        SpecError: naming the first such trial.
    """
    for trial in trials:
        if trial.convergence_fingerprint != stamp.convergence:
            raise SpecError(
                f"workload.lengths | trial {trial.number} of this run trained on another batch: "
                f"its convergence fingerprint is {trial.convergence_fingerprint[:12]}, wanted "
                f"{stamp.convergence[:12]}",
                hint="restore the file of document lengths, or give the run another name",
            )


def refuse_other_launcher(trials: Sequence[Trial], stamp: Stamp) -> None:
    """Refuse to go on with trials that another launcher answered: they are of another kind.

    Raises:
        SpecError: naming the first such trial.
    """
    for trial in trials:
        if trial.launcher is not stamp.launcher:
            raise SpecError(
                f"trial {trial.number} of this run is {trial.launcher.value}'s, and this is "
                f"--launcher {stamp.launcher.value}: what was measured and what was not do not mix",
                hint=f"resume it with --launcher {trial.launcher.value}, or give another --name",
            )


def _refuse_crowding(world_size: int, topology: Topology) -> None:
    """Refuse more CPU ranks than the memory of the nodes can hold even before they train."""
    sizes = [node.memory_bytes for node in topology.nodes if node.memory_bytes is not None]
    if len(sizes) < len(topology.nodes):
        return
    most = sum(size // _IDLE_RANK_BYTES for size in sizes)
    if world_size > most:
        raise SpecError(
            f"cluster.world_size | {world_size} CPU ranks, an idle one takes "
            f"{bytes_text(_IDLE_RANK_BYTES)} and there are {bytes_text(sum(sizes))}; "
            f"nearest legal: {most}"
        )


def _setting(spec: SweepSpec) -> Setting:
    assert spec.cluster.world_size is not None, "the spec is resolved"
    return Setting(model=spec.model, workload=spec.workload, world_size=spec.cluster.world_size)
