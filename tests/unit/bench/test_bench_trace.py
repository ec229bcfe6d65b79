"""From what a recorder was told to what is exposed, by axis and layer."""

import threading

import pytest

from cptune.bench.clocks import ClockOffset
from cptune.bench.collectives import watch_all
from cptune.bench.partners import Ready, standstill
from cptune.bench.readings import HostClock
from cptune.bench.recorder import Recorder, Transfer
from cptune.bench.trace import rank_trace
from cptune.bench.waits import Standstill, Wait
from cptune.domain.timeline import SpanKind, Stamp

CLOCK = ClockOffset(0.0, 0.0)


class HandClock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def awaited(axis):
    """What a wait was for, where only its axis matters."""
    return Transfer(
        axis=axis, name="", layer=None, bytes=0, channel="awaited", index=0, posted_s=0.0
    )


def step_of(recorder, clock, *, ready=None, waits=None):
    """A step of 20 s: computes to 6 and from 9 to 15 and from 16, waits between; three messages."""

    def message(layer, start, stop):
        clock.now = start
        recorder.layer = layer
        one = recorder.post("keys", axis="cp", size_bytes=8, channel="0>1")
        one.end(stop, Stamp.COMPLETED)

    message(0, 4.0, 11.0)
    message(0, 10.0, 12.0)
    message(1, 18.0, 20.0)
    for axis, interval in (("cp", (6.0, 9.0)), ("dp", (15.0, 16.0)), ("cp", (18.0, 20.0))):
        recorder.blocked.append((awaited(axis), interval))
    recorder.close()
    return rank_trace(
        recorder,
        window=(0.0, 20.0),
        ready={key: Ready(at_s, 1) for key, at_s in (ready or {}).items()},
        waits=waits or {},
        clock=CLOCK,
        zero_s=0.0,
    )


def rows(trace, axis):
    return {
        (row.layer, row.whole): (row.communication_s, row.exposed_s)
        for row in trace.exposed
        if row.axis == axis
    }


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def recorder(clock):
    return Recorder({"g": "tp"}, clock=HostClock(clock))


def test_exposed_is_told_by_axis_and_by_layer(recorder, clock):
    trace = step_of(recorder, clock)

    assert rows(trace, "cp") == {
        (None, True): (10.0, 5.0),
        (0, False): (8.0, 3.0),
        (1, False): (2.0, 2.0),
    }
    assert rows(trace, "dp") == {(None, True): (0.0, 0.0)}
    assert trace.whole("cp").blocked_s == 5.0
    assert trace.whole("dp").blocked_s == trace.whole("dp").late_s == 1.0
    assert trace.whole("cp").late_s == 0.0


def test_a_transfer_begins_when_its_last_partner_is_ready(recorder, clock):
    trace = step_of(recorder, clock, ready={("0>1", 0): 8.0, ("0>1", 1): 9.0, ("0>1", 2): 19.5})

    # The first moves from 8 on, of which 8 to 9 is exposed; the third from 19.5.
    assert rows(trace, "cp")[None, True] == (4.5, 1.5)
    late = [span for span in trace.spans if span.kind is SpanKind.COMMUNICATION]
    assert [(one.posted_s, one.start_s) for one in late] == [(4.0, 8.0), (10.0, 10.0), (18.0, 19.5)]


def test_waits_that_are_communication_are_exposed_where_they_come_down_to(recorder, clock):
    waits = {("cp", 1): [(7.0, 9.0)], ("tp", 4): [(15.0, 16.0)]}
    trace = step_of(recorder, clock, ready={("0>1", 0): 8.0}, waits=waits)

    # From 8 on its own message moves: that second is not counted twice.
    assert rows(trace, "cp") == {
        (None, True): (7.0, 4.0),
        (0, False): (4.0, 1.0),
        (1, False): (4.0, 4.0),
    }
    # It stood still there in its wait for replicas, which wait for tensors elsewhere.
    assert rows(trace, "tp") == {(None, True): (1.0, 1.0), (4, False): (1.0, 1.0)}
    assert rows(trace, "dp") == {(None, True): (0.0, 0.0)}
    assert (trace.whole("cp").blocked_s, trace.whole("dp").blocked_s) == (5.0, 1.0)
    # Only 6 to 7 was for a peer that computed: nothing moved then, anywhere.
    assert (trace.whole("cp").late_s, trace.whole("dp").late_s) == (1.0, 0.0)
    spans = [span for span in trace.spans if span.kind is SpanKind.WAIT]
    assert [(one.start_s, one.stop_s, one.axis, one.layer) for one in spans] == [
        (7.0, 9.0, "cp", 1),
        (15.0, 16.0, "tp", 4),
    ]


def test_a_wait_lasts_until_the_last_partner_of_what_is_waited_for_is_ready(recorder, clock):
    recorder.layer = 2
    late, own, prompt = (
        recorder.post("keys", axis="cp", size_bytes=8, channel=channel)
        for channel in ("0>1", "1>0", "2>0")
    )
    for one, stop in ((late, 9.0), (own, 7.0), (prompt, 4.0)):
        one.end(stop, Stamp.COMPLETED)
    recorder.blocked += [(prompt, (3.0, 4.0)), (late, (5.0, 9.0)), (own, (12.0, 13.0))]
    recorder.close()
    ready = {("0>1", 0): Ready(8.0, 1), ("1>0", 0): Ready(6.0, 0), ("2>0", 0): Ready(2.0, 2)}

    found = standstill(recorder, ready, rank=0, clock=ClockOffset(1.0, 0.0))

    assert found == Standstill(
        moving={("cp", 2): [(2.0, 3.0), (5.0, 6.0), (7.0, 8.0)]}, waits=[Wait((4.0, 7.0), 1)]
    )


def test_compute_windows_are_what_is_left_and_know_their_layer(recorder, clock):
    for at, name, layer in ((1.0, "forward", 0), (7.0, "backward", 1), (14.0, "after", None)):
        clock.now = at
        recorder.work_on(name, layer)

    spans = step_of(recorder, clock).spans

    computed = [span for span in spans if span.kind is SpanKind.COMPUTE]
    assert [(one.start_s, one.stop_s, one.name, one.layer) for one in computed] == [
        (0.0, 1.0, "beside the layers", None),
        (1.0, 6.0, "forward", 0),
        (9.0, 14.0, "backward", 1),
        (14.0, 15.0, "after", None),
        (16.0, 18.0, "after", None),
    ]


def test_a_transfer_that_nobody_saw_end_is_refused(recorder):
    recorder.layer = 3
    recorder.post("keys", axis="cp", size_bytes=8, channel="0>1")

    said = r"1 of 1 transfers were never seen to end; .* keys over cp in layer 3"
    with pytest.raises(RuntimeError, match=said):
        recorder.close()


def test_the_end_of_a_message_is_stamped_when_it_comes_not_when_it_is_waited_for(recorder, clock):
    arrived = threading.Event()

    class Message:
        def wait(self):
            arrived.wait(10)

    one = recorder.post("keys", axis="cp", size_bytes=8, channel="0>1")
    watched = recorder.watch(Message(), one)
    clock.now = 2.0
    arrived.set()
    recorder._watchers.shutdown(wait=True)
    clock.now = 5.0
    watched.wait()

    assert (one.stop_s, one.stamp) == (2.0, Stamp.COMPLETED)
    assert recorder.blocked == [(one, (5.0, 5.0))]


def test_the_works_of_a_batch_are_one_for_each_message_or_one_for_all(recorder, clock):
    def posted(count):
        return [recorder.post("keys", axis="cp", size_bytes=8, channel="0>1") for _ in range(count)]

    class Done:
        def wait(self):
            pass

    assert len(watch_all(recorder, [Done(), Done()], posted(2))) == 2
    assert len(watch_all(recorder, [Done()], posted(3))) == 1
    with pytest.raises(AssertionError, match="2 works for 3 messages"):
        watch_all(recorder, [Done(), Done()], posted(3))
    recorder.transfers = recorder.transfers[:5]
    recorder.close()
    assert all(one.stop_s is not None for one in recorder.transfers)


def test_what_a_message_met_is_raised_where_it_is_waited_for(recorder):
    class Broken:
        def wait(self):
            raise RuntimeError("Connection closed by peer")

    one = recorder.post("keys", axis="cp", size_bytes=8, channel="0>1")
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        recorder.watch(Broken(), one).wait()


def test_a_collective_is_a_transfer_in_which_the_rank_stands_still(recorder, clock):
    with recorder.collective("sum", axis="dp", group_name="h", size_bytes=4, layer=2):
        clock.now = 3.0
    recorder.close()

    trace = rank_trace(recorder, window=(0.0, 3.0), ready={}, waits={}, clock=CLOCK, zero_s=0.0)
    assert rows(trace, "dp") == {(None, True): (3.0, 3.0), (2, False): (3.0, 3.0)}
