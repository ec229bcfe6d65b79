"""Benchmarks of cptune: ratios within one run, against the best known way and a perfect one."""
