"""Every count of a spec has a largest legal value, which the refusal of an absurd one names."""

import re
from dataclasses import is_dataclass, replace
from typing import get_args, get_type_hints

import pytest
from fakes import sweep_spec

from cptune.domain.probe import ProbeAsk
from cptune.domain.study import SweepSpec

ABSURD = 10**30
LARGEST = re.compile(r"wanted [\d,.]+ to ([\d,]+)$")


def counts():
    """(table, key) of each whole number of a spec, or list of them."""
    for table, noun in get_type_hints(SweepSpec).items():
        for key, hint in get_type_hints(noun).items() if is_dataclass(noun) else ():
            if int in {hint, *get_args(hint)} and (table, key) != ("cluster", "gather_hops"):
                yield table, key


def test_the_counts_are_found():
    found = set(counts())
    assert {("budget", "depths"), ("axes", "tp"), ("cluster", "world_size")} <= found
    assert {("model", "layers"), ("workload", "seq_len"), ("search", "seed")} <= found
    assert len(found) > 30


def changed(table, key, value):
    noun = getattr(sweep_spec(), table)
    whole = isinstance(getattr(noun, key), tuple)
    pair = (1, value) if key == "depths" else (value,)
    return replace(noun, **{key: pair if whole else value})


@pytest.mark.parametrize(("table", "key"), [*counts()])
def test_an_absurd_count_is_refused_with_the_largest_that_is_legal(table, key):
    with pytest.raises(ValueError, match=rf"{key} is {ABSURD}; ") as caught:
        changed(table, key, ABSURD)

    largest = int(LARGEST.search(str(caught.value))[1].replace(",", ""))
    with pytest.raises(ValueError, match=rf"{key} is {largest + 1}; "):
        changed(table, key, largest + 1)
    if (table, key) not in {("model", "kv_heads"), ("model", "experts"), ("model", "heads")}:
        changed(table, key, largest)  # those three have rules beside the bound


@pytest.mark.parametrize("name", ["tp", "cp", "repeats", "payload_mib"])
def test_so_is_that_of_a_probe(name):
    with pytest.raises(ValueError, match=r"wanted 1 to [\d,]+"):
        replace(ProbeAsk(cp=2), **{name: ABSURD}).check()
