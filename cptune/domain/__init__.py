"""The nouns of cptune and their rules: frozen dataclasses of the standard library, no I/O."""
