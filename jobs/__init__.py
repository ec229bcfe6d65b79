"""Entrypoints for `ray job submit`: parse, call cptune, exit code."""
