"""What several modules of unit tests have in common."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of Data Docs for all tests, as one worker has."""
    return tmp_path_factory.mktemp("docs")
