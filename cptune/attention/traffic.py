"""Counts what one rank moved: bytes are compared with the plan, seconds with the compute."""

from dataclasses import dataclass, field
from enum import StrEnum


class Pass(StrEnum):
    """The half of a step that a transfer belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(slots=True)
class PassTraffic:
    """Payload of one direction of the step, and the time this rank stood still for it."""

    sent_bytes: int = 0
    received_bytes: int = 0
    wait_s: float = 0.0


@dataclass(slots=True)
class PeerTraffic:
    """Payload exchanged with one peer."""

    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0  # from post to the return of the wait, summed over what it sent us


@dataclass(slots=True)
class Traffic:
    """What this rank moved since the last reset. Read it between steps."""

    forward: PassTraffic = field(default_factory=PassTraffic)
    backward: PassTraffic = field(default_factory=PassTraffic)
    peers: dict[int, PeerTraffic] = field(default_factory=dict)  # by rank of the context group

    @property
    def forward_sent_bytes(self) -> int:
        """Keys and values sent in forward."""
        return self.forward.sent_bytes

    @property
    def forward_received_bytes(self) -> int:
        """Keys and values received in forward."""
        return self.forward.received_bytes

    @property
    def backward_sent_bytes(self) -> int:
        """Keys, values and their gradients sent in backward."""
        return self.backward.sent_bytes

    @property
    def backward_received_bytes(self) -> int:
        """Keys, values and their gradients received in backward."""
        return self.backward.received_bytes

    @property
    def wait_s(self) -> float:
        """Seconds blocked in wait, both directions."""
        return self.forward.wait_s + self.backward.wait_s

    def of(self, during: Pass) -> PassTraffic:
        """The counters of one direction."""
        return self.forward if during is Pass.FORWARD else self.backward

    def peer(self, rank: int) -> PeerTraffic:
        """The counters of one peer, made on first use."""
        return self.peers.setdefault(rank, PeerTraffic())

    def reset(self) -> None:
        """Start counting from zero."""
        self.forward, self.backward = PassTraffic(), PassTraffic()
        self.peers = dict[int, PeerTraffic]()
