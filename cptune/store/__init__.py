"""The run directory: every finished trial as typed Parquet, and the recipe."""
