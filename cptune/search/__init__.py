"""Which candidates are legal, which comes next, and which one is the recipe."""
