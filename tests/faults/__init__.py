"""Faults at random under load, and a count of what was lost: `python -m tests.faults --json faults.json`.

Real processes: a gateway with two workers over an engine that costs next to nothing, a forwarder, a Kafka broker, two
landers, and one that freezes datasets; or the same on the embedded log, without forwarder and broker.

- `clients`: callers that write down, with fsync, what was acknowledged to them
- `ledger`: what they wrote, and how much of it each fault saw
- `lander`, `freezer`: loops around the product's own functions, as processes that can be killed
- `clock/`: a `sitecustomize` that shifts a process's `time.time`, by a file that the killer writes
- `machine`: starts the parts, and again whatever has ended
- `faults`: what can be done to it: kill -9, a full disk, a jump of a clock, a restart, a pause, a damaged segment
- `verdict`: the ledger against the lake, by DuckDB
- `run`: the whole of it; a seed says what is drawn, though not what the machine makes of it

What must hold, whatever is done: every acknowledged turn and feedback is in the lake exactly once, every turn has one
state, and no turn is in two datasets. What stood on a damaged page is excused, but for `ack = "broker"`: there nobody
may have been told that it is recorded.
"""
