"""The gateway: users' requests go through here, and every answer's record is durable before its end is told.

- `turns`: a turn, step by step; start reading here
- `app`, `server`, `exchange`: routes, worker processes, one request and its response
- `dialects/`: one wire format a file; `sessions`: which conversation; `auth`: which key, how much more
- `engine_client`, `engine_connection`, `stream`: the engine's side
- `records`, `trainability`: from the tap's record to turns
- `snapshot`: what control says; `gateway`: the parts of one process; `progress`: one turn in progress

It imports nothing heavy (no torch, vllm, pandas, mlflow, sqlalchemy), keeps no state of its own but the spool, and
runs as several processes that know nothing of each other.
"""
