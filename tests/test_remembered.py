"""What is remembered, for how long, and how much of it."""

from __future__ import annotations

from smcfast import remembered
from smcfast.remembered import ENTRIES_MAX, Remembered


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_times_are_those_of_the_documentation() -> None:
    assert remembered.listeners._seconds == 30
    assert remembered.destinations._seconds == 600


def test_it_is_forgotten_when_its_time_is_over() -> None:
    clock = Clock()
    memory = Remembered(30, clock)
    assert 1 not in memory
    memory.add(1)
    clock.now += 29.9
    assert 1 in memory
    clock.now += 0.1
    assert 1 not in memory
    assert memory._until == {}


def test_what_is_added_again_has_all_its_time() -> None:
    clock = Clock()
    memory = Remembered(30, clock)
    memory.add(1)
    clock.now += 20
    memory.add(1)
    clock.now += 20
    assert 1 in memory


def test_when_it_is_full_the_oldest_one_goes() -> None:
    clock = Clock()
    memory = Remembered(30, clock)
    for key in range(ENTRIES_MAX):
        memory.add(key)
    memory.add(0)
    memory.add(ENTRIES_MAX)
    assert len(memory._until) == ENTRIES_MAX
    assert 0 in memory
    assert 1 not in memory
    assert 2 in memory
