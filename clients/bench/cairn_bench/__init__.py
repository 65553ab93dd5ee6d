"""Runs workloads over real daemons of Cairn and reports what each retrieval policy answers and costs.

docs/cairn-bench.md describes the program, `cairn-bench --help` its options.
"""
