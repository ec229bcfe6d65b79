"""Equivalence with the unsharded model on a short deterministic case, probes, and mutants."""
