"""TopologyError crosses processes with its hint."""

import pickle

from topology import TopologyError


def test_an_error_survives_pickle_with_its_hint():
    error = pickle.loads(pickle.dumps(TopologyError("what", hint="do this")))

    assert (str(error), error.hint) == ("what", "do this")


def test_a_hint_is_optional():
    assert TopologyError("what").hint == ""
