"""What the memory of a rank was made of at its peak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySplit:
    """Live bytes of one rank at the moment of its highest peak; the first five add up to it.

    States are weights, masters, moments and gradients; activations what forward, or a recomputation
    in backward, keeps for backward; logits what the loss and its gradient hold; comm whatever a
    collective or a message read or filled; transient the rest. `optimizer_peak_bytes` is the peak
    of the optimizer's update, a moment of its own.
    """

    states_bytes: int
    activations_bytes: int
    logits_bytes: int
    comm_bytes: int
    transient_bytes: int
    optimizer_peak_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The peak that the parts add up to."""
        kept = self.states_bytes + self.activations_bytes + self.logits_bytes
        return kept + self.comm_bytes + self.transient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one rank kept for backward, beside what it should keep when the context is sharded.

    `attention` is what one attention call keeps, the largest block that grows with the sequence;
    `peak` the most of all that was kept at once. Where attention is computed again in backward it
    keeps nothing, and its bytes are 0.
    """

    attention_bytes: int
    planned_attention_bytes: int
    peak_bytes: int
    planned_peak_bytes: int
