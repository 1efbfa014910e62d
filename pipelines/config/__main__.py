"""Prints the configuration reference."""

from pipelines.config import Config
from pipelines.config.reference import render

print(render(Config), end="")
