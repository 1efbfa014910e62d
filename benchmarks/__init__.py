"""Measurements that anybody can repeat, each a program: `python -m benchmarks.gateway`.

They measure ratios between things that run side by side in one run, for absolute times depend on the machine and on
what else it does. None of this is shipped.
"""
