"""How far data-parallel groups drift apart in attention time, and what evens them out."""
