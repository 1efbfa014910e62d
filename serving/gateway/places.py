"""How much one process takes on at a time: requests in progress, and the bytes of their bodies together.

A declared length counts before any of the body is read, a body without one counts as it comes, and both count until
the request was answered, for the request is kept until its turn is recorded. A length that was declared and never comes
counts no longer than the body may take.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from serving.gateway.errors import TooLarge, Unavailable


class Places:
    """The places of one process: `most_requests`, with `most_bytes` of bodies."""

    def __init__(self, most_requests: int, most_bytes: int) -> None:
        self._most_requests = most_requests
        self.most_bytes = most_bytes
        self.requests = 0
        """Taken now."""
        self.bytes = 0
        """Reserved now, for the bodies of all of them."""

    @contextmanager
    def hold(self) -> Iterator["Place"]:
        """One place, to the end of the block. Raises `Unavailable`."""
        if self.requests >= self._most_requests:
            raise Unavailable("Too many requests are in progress here: try again in a moment.")
        place = Place(self)
        self.requests += 1
        try:
            yield place
        finally:
            self.requests -= 1
            self.bytes -= place.bytes


class Place:
    """One request's place, and the bytes that are reserved for its body."""

    __slots__ = ("_places", "bytes")

    def __init__(self, places: Places) -> None:
        self._places = places
        self.bytes = 0

    def reserve(self, size: int) -> None:
        """Room for a body of `size` bytes, or of so many until now.

        Raises `TooLarge` where there never is so much, `Unavailable` where there is not now.
        """
        places, more = self._places, size - self.bytes
        if more <= 0:
            return
        if size > places.most_bytes:
            raise TooLarge(f"The body is above {places.most_bytes} bytes.")
        if places.bytes + more > places.most_bytes:
            raise Unavailable("The requests in progress here are too large together: try again in a moment.")
        places.bytes += more
        self.bytes = size
