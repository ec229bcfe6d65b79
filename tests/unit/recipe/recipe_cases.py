"""Recipes that the tests of their life share, as nouns and as files."""

import json
from dataclasses import replace

from fakes import STAMP, candidate, measured, sweep_spec, trial_of

from cptune.domain.environment import RankEnvironment
from cptune.domain.proof import Check, Proof
from cptune.domain.recipe import CertificateEntry, Control, Evidence, Recipe
from cptune.domain.seal import DIGESTS, sealed
from cptune.domain.trial import Predicted
from cptune.proof.fixture import proof_case

SPEC = sweep_spec()
CP2 = candidate(cp=2, dp=2)


def proof_of(tried, spec=SPEC, **changes):
    fields = {
        "candidate_key": tried.key,
        "fixture": proof_case(tried, model=spec.model, workload=spec.workload).digest,
        "checks": (Check(name="loss", max_error=1e-12, tolerance=1e-10),),
    }
    return Proof(**fields | changes)


def recipe_of(tried=CP2, *, spec=SPEC, measurement=None, **changes):
    trial = trial_of(tried, measurement or measured(step_s=0.25, sample_hash="ab"))
    fields = {
        "spec": spec,
        "candidate": tried,
        "placement": trial.placement,
        "measurement": trial.measurement,
        "predicted": Predicted(
            step_s=0.5, peak_lo_bytes=1, peak_bytes=2, peak_hi_bytes=3, model_version="1"
        ),
        "capacity_bytes": 1000,
        "certificate": (CertificateEntry(cp=1, reason="no room", evidence=Evidence.MEASURED),),
        "controls": (Control(candidate_key="k", cp=1, verdict="out_of_memory", reason="much"),),
        "versions": {"cptune": "0.1", "torch": "2.13.0"},
        "fingerprints": STAMP.fingerprints,
        "environment": RankEnvironment(shared={"OMP_NUM_THREADS": "1"}),
        "commands": ("cptune sweep spec.toml",),
        "caveats": ("the ranks ran with X=1",),
        "run_id": "0" * 32,
    }
    if "proof" not in changes:
        fields["proof"] = proof_of(tried, spec)
    return Recipe(**fields | changes)


def content_of(recipe):
    return json.loads(json.dumps(recipe.to_json()))


def edited(content, path, value, *, seal):
    """The content with the value at a dotted path changed; sealed again, or not."""
    changed = json.loads(json.dumps(content))
    *parents, last = path.split(".")
    place = changed
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    place[int(last) if last.isdigit() else last] = value
    if not seal:
        return changed
    return sealed({name: part for name, part in changed.items() if name != DIGESTS})


def written(folder, content):
    path = folder / "recipe.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def with_workload(spec=SPEC, **changes):
    return replace(spec, workload=replace(spec.workload, **changes))
