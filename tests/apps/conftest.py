"""Fixtures for the tests with applications of others, beside those of ``tests/conftest.py``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from apps.support.runs import PROGRAMS, Way
from apps.support.servers import postgres, redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from apps.support.servers import Server

sys.path.append(str(PROGRAMS))  # what they do can be done in the test's own process, too


@pytest.fixture(params=Way, ids=lambda way: way.value)
def way(request: pytest.FixtureRequest) -> Way:
    """The path that connections are to take."""
    chosen: Way = request.param
    return chosen


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """A Redis of this run's own."""
    with redis() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL of this run's own."""
    with postgres() as server:
        yield server
