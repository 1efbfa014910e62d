"""A clock that jumps: `time.time` of this process is off by the seconds that the file `FAULTS_CLOCK` says.

The file holds one float64, which another process may change at any moment. What asks the kernel by other ways (SQLite,
the Rust of Delta, file times) goes by the true clock, as another machine would.
"""

import mmap
import os
import struct
import time

if _path := os.environ.get("FAULTS_CLOCK"):
    with open(_path, "rb") as _file:
        _shift = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _true = time.time
    time.time = lambda: _true() + struct.unpack("d", _shift)[0]
