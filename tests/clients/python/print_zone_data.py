"""Prints the directory of the package tzdata's zone data."""

import importlib.resources

print(importlib.resources.files("tzdata").joinpath("zoneinfo"))
