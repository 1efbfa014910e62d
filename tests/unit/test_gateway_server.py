"""What a gateway process takes of its machine."""

import subprocess
import sys

import pytest

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 900))
from serving.gateway.server import most_connections
if {fails}:
    def refuse(*limits):
        raise PermissionError
    resource.setrlimit = refuse
print(most_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("fails", "told"), [(False, "300 900 900"), (True, "100 300 900")])
def test_all_files_that_are_allowed_are_taken_and_a_third_is_for_clients(fails: bool, told: str) -> None:
    process = [sys.executable, "-c", LIMITED.format(fails=fails)]
    assert subprocess.run(process, capture_output=True, text=True, check=True).stdout == f"{told}\n"
