"""cptune: find the complete parallel recipe for long-context training, with the evidence for it."""

__version__ = "0.1.0"
