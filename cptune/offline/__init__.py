"""Searches without hardware: a prediction or a stored table answers in the place of trials."""
