"""The life of a recipe: what it was made with, and what would force a new qualification."""
