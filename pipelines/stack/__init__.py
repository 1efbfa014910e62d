"""everloop on one machine: `everloop up`, `down`, `status`.

- `checks`: what must be true before anything starts, a sentence each
- `addresses`, `secrets`: chosen and made once, remembered in `run/`
- `programs`: the processes, as supervisord's configuration
- `alone`: starts a program after what its last run left
- `supervisor`: supervisord, by its socket
- `leftovers`: processes that outlived a killed supervisor
- `up`: brings the stack up and down in the right order; `status`: how it stands

Invariant: after `down` no process of this home folder is left, and after a kill -9 of any one of them it is back.
"""
