"""Media in any format. By URL they are refused unless the host is allowed: the engine would fetch them from inside.

Parts that carry embeddings, and the identity of a medium in the engine's cache, by which tenants would meet, steer the
engine itself: as fields that do, they need the role admin.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from serving.gateway.errors import BadRequest, Forbidden

_IDENTITY = "uuid"


def check_url(url: object, domains: Collection[str], where: str) -> None:
    """Raises `BadRequest` unless `url` is inline (`data:`) or of an allowed host."""
    if isinstance(url, str) and url.startswith("data:"):
        return
    if not isinstance(url, str) or not _allowed(url, domains):
        raise BadRequest(
            "Media by URL is refused here unless its host is allowed: send it inline.",
            param=where,
        )


def plain_parts(parts: object, where: str, dropped: list[str]) -> object:
    """A content without what needs the role admin; `dropped` gets the names. Raises `Forbidden` for embeddings.

    Engines know a part by its fields, too, where it has no type or an identity.
    """
    if not isinstance(parts, list):
        return parts
    kept = []
    for place, part in enumerate(parts):
        kind = part.get("type")
        for name in (kind, *part) if isinstance(kind, str) else part:
            if name.endswith("_embeds") or name == "image_pil":
                raise Forbidden(f"`{name}` steers the engine itself and needs a key with the role admin.")
        if _IDENTITY in part:
            dropped.append(f"{where}[{place}].{_IDENTITY}")
            part = {name: value for name, value in part.items() if name != _IDENTITY}
        kept.append(part)
    return kept


def only_text(parts: list) -> bool:
    """Whether the parts are text in chat's form and nothing else, as most are: there is no need to look into them."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or len(part) != 2 or "text" not in part:
            return False
    return True


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
