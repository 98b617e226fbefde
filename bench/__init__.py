"""Benchmarks: ratios within one run on one machine, rounds interleaved (A B A B), medians over rounds."""
