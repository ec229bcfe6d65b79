"""`cptune verify`: the proof that sharding changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cptune.cli.app import Format, app, end_on_signals
from cptune.errors import SpecError
from cptune.printing import print_answer, say

_MOST = 12


@app.command
def verify(
    spec: Path | None = None,
    /,
    *,
    candidate: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    most: int | None = None,
    self_test: Annotated[bool, Parameter(negative=())] = False,
    address: str = "local",
    format: Format = Format.TABLE,
) -> int:
    """Prove that candidates compute what the unsharded model computes.

    Each trains a small model of odd sizes on its own layout in fp64, beside plain PyTorch in one
    process: outputs, gradients by parameter, updates, masks, padding, seams, bytes moved.

    Args:
        spec: A sweep.toml; the built-in quickstart if omitted.
        candidate: Key of one to prove, may be repeated; if omitted a few that share out the pairs
            of axis values.
        most: How many of those at most; 12 if omitted.
        self_test: Plant faults instead, one by one: each must be refused.
        address: "local" starts a Ray on this machine; else the address of a Ray cluster.
        format: How to print the result.
    """
    end_on_signals()
    is_json = format is Format.JSON
    if most is not None and most < 1:
        raise SpecError(f"--most is {most}; wanted 1 or more")
    if self_test:
        if spec or candidate or most is not None:
            raise SpecError("--self-test plants faults in candidates of its own; wanted no others")
        return _plant_faults(address, as_json=is_json)
    from cptune.report.proof import proof_line, verify_view
    from cptune.spec import QUICKSTART, load, load_quickstart
    from cptune.verify import run_verify

    found = run_verify(
        load(spec) if spec else load_quickstart(QUICKSTART),
        keys=candidate,
        most=most or _MOST,
        address=address,
        on_proof=lambda proof: say(proof_line(proof)),
    )
    print_answer(found.to_json(), as_json=is_json, view=verify_view)
    if found.cover is not None:
        say(
            f"{len(found.proofs)} of {found.legal} legal candidates, with {found.cover.covered} of "
            f"the {found.cover.pairs} pairs of axis values among them"
        )
    return 0 if found.passed else 1


def _plant_faults(address: str, *, as_json: bool) -> int:
    from cptune.report.proof import self_test_view
    from cptune.verify import run_self_test, self_test_json

    seen = run_self_test(
        address=address,
        on_rejection=lambda one: say(f"{'refused' if one.rejected else 'ACCEPTED'}: {one.name}"),
    )
    print_answer(self_test_json(seen), as_json=as_json, view=self_test_view)
    accepted = [one.name for one in seen if not one.rejected]
    say(f"{len(seen) - len(accepted)} of {len(seen)} planted faults refused")
    return 1 if accepted else 0
