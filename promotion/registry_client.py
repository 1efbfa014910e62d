"""The registry as the reconciler needs it: aliases, tags and versions over MLflow's REST interface.

`promotion.registry` does the rest with MLflow's own client; its import takes seconds and 200 MB, too much for a
process that only polls.
"""

from dataclasses import dataclass

from promotion.http import JsonClient, Refusal
from promotion.names import CHAMPION, checkpoint_of, source_of

_API = "/api/2.0/mlflow"


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model. `checkpoint_id` is None when its source is not a checkpoint of its policy."""

    number: str
    checkpoint_id: str | None
    tags: dict[str, str]
    description: str


def _parse(policy: str, raw: dict) -> ModelVersion:
    return ModelVersion(
        number=str(raw["version"]),
        checkpoint_id=checkpoint_of(policy, raw.get("source", "")),
        tags={tag["key"]: tag["value"] for tag in raw.get("tags", [])},
        description=raw.get("description", ""),
    )


class RegistryClient:
    """The registered models of one MLflow server."""

    def __init__(self, http: JsonClient) -> None:
        self._http = http

    async def champion(self, policy: str) -> ModelVersion | None:
        """The version with the alias `champion`, None while the model or the alias is absent."""
        try:
            answer = await self._http.call(
                "GET", f"{_API}/registered-models/alias", params={"name": policy, "alias": CHAMPION}
            )
        except Refusal as refusal:
            absent_alias = refusal.status == 400 and "alias" in str(refusal) and "not found" in str(refusal)
            if absent_alias or refusal.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return _parse(policy, answer["model_version"])

    async def find(self, policy: str, checkpoint_id: str) -> ModelVersion | None:
        """The (first) version that is this checkpoint."""
        clause = f"name='{policy}' and source_path='{source_of(policy, checkpoint_id)}'"
        answer = await self._http.call("GET", f"{_API}/model-versions/search", params={"filter": clause})
        found = [_parse(policy, raw) for raw in answer.get("model_versions", [])]
        return min(found, key=lambda v: int(v.number), default=None)

    async def set_champion(self, policy: str, number: str) -> None:
        """Moves the alias `champion`."""
        body = {"name": policy, "alias": CHAMPION, "version": number}
        await self._http.call("POST", f"{_API}/registered-models/alias", body=body)

    async def drop_champion(self, policy: str) -> None:
        """Removes the alias `champion`."""
        params = {"name": policy, "alias": CHAMPION}
        await self._http.call("DELETE", f"{_API}/registered-models/alias", params=params)

    async def tag(self, policy: str, number: str, key: str, value: str) -> None:
        """Sets one tag of a version."""
        body = {"name": policy, "version": number, "key": key, "value": value}
        await self._http.call("POST", f"{_API}/model-versions/set-tag", body=body)

    async def untag(self, policy: str, number: str, key: str) -> None:
        """Removes one tag of a version."""
        body = {"name": policy, "version": number, "key": key}
        await self._http.call("DELETE", f"{_API}/model-versions/delete-tag", body=body)

    async def describe(self, policy: str, number: str, description: str) -> None:
        """Replaces a version's description (Markdown)."""
        body = {"name": policy, "version": number, "description": description}
        await self._http.call("PATCH", f"{_API}/model-versions/update", body=body)
