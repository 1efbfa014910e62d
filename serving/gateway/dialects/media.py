"""Media by URL, in any format: refused unless its host is allowed, for the engine would fetch it from inside."""

from collections.abc import Collection
from urllib.parse import urlsplit

from serving.gateway.errors import BadRequest


def check_url(url: object, domains: Collection[str], where: str) -> None:
    """Raises `BadRequest` unless `url` is inline (`data:`) or of an allowed host."""
    if isinstance(url, str) and url.startswith("data:"):
        return
    if not isinstance(url, str) or not _allowed(url, domains):
        raise BadRequest(
            "Media by URL is refused here unless its host is allowed: send it inline.",
            param=where,
        )


def _allowed(url: str, domains: Collection[str]) -> bool:
    """Whether the host is allowed, whoever parses the URL: the engine has a parser of its own, and where parsers
    differ (backslashes, user names, white space) it would fetch from another host than was looked at here."""
    if not url.isascii() or not url.isprintable() or set(url) & set(" \\@"):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.hostname in domains
