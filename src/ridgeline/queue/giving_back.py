"""How many jobs of a list must give back what they hold before another one fits."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.queue.pool import Asked, Held, ImaginedRoom


def fewest_given_back(
    room: ImaginedRoom, count: int, held: Callable[[int], Held], asked: Asked
) -> int | None:
    """How many of `count` jobs must, from the first on; None: all of them are not enough.

    What fits goes on fitting when more is given back, so the number is found in strides that grow
    and then halve. The room is left with so many given back, or all.
    """
    given, stride = 0, 1
    while True:
        before, given = given, min(given + stride, count)
        _move(room, held, before, given)
        if given and room.fits(asked):
            break
        if given == count:
            return None
        stride *= 2
    low, high = before, given  # not enough, enough
    while high - low > 1:
        middle = (low + high) // 2
        _move(room, held, given, middle)
        given = middle
        low, high = (low, middle) if room.fits(asked) else (middle, high)
    _move(room, held, given, high)
    return high


def _move(room: ImaginedRoom, held: Callable[[int], Held], given: int, to: int) -> None:
    """Give back so many instead; what was given last is taken again first."""
    for place in range(given, to):
        room.change(held(place), 1)
    for place in range(given - 1, to - 1, -1):
        room.change(held(place), -1)
