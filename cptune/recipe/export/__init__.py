"""A recipe in the words of another trainer, or why it cannot be said there."""
