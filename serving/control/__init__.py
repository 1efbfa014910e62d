"""The control process: the one that opens the control database, and tells everyone else over HTTP.

- `app`: the routes; `shared`: what handlers share
- `keys`, `policies`, `engines`, `subjects`: what they do, each in one transaction
- `database`, `tables`, `migrations/`: where it is kept

Which engine may swap when is decided in `serving.fleet.assignments`, without a database.
"""
