"""Failures provoked on purpose, each with the guard that must catch it and a control beside it."""
