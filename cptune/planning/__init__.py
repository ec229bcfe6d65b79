"""The commands that need no hardware: what a spec allows, what it would cost, and why not."""
