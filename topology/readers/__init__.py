"""Text that people already have, read into the same nouns as a live machine."""

from topology.readers.files import read_topology
from topology.readers.reading import Reading
from topology.readers.recognise import read_text

__all__ = ["Reading", "read_text", "read_topology"]
