"""Names in the registry: aliases, tags, and where a model version's weights are.

A registered model is named by its policy. A version's source is `everloop:/<policy>/<checkpoint_id>`: no
machine's path, and fixed at creation, where tags can be edited by anyone with the UI.
"""

CHAMPION = "champion"
CHALLENGER = "challenger"

TAG_CHECKPOINT = "everloop.checkpoint"
TAG_DECISION = "everloop.decision"
TAG_VERDICT_DIGEST = "everloop.verdict_digest"
TAG_EVALUATION_RUN = "everloop.evaluation_run"
TAG_OVERRIDE = "everloop.override"
TAG_REFUSED = "everloop.refused"
TAG_ERASED = "everloop.erased"

_SCHEME = "everloop:/"


def source_of(policy: str, checkpoint_id: str) -> str:
    """The source of the version that is this checkpoint."""
    return f"{_SCHEME}{policy}/{checkpoint_id}"


def checkpoint_of(policy: str, source: str | None) -> str | None:
    """The checkpoint id in a source, None when it names no checkpoint of `policy` (or a path out of its folder)."""
    prefix = f"{_SCHEME}{policy}/"
    if source is None or not source.startswith(prefix):
        return None
    checkpoint_id = source.removeprefix(prefix)
    return None if checkpoint_id in ("", ".", "..") or "/" in checkpoint_id else checkpoint_id
