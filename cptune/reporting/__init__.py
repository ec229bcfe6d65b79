"""A run directory read whole and judged again, and its page written."""
