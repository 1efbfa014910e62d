"""The control process as promotion needs it: what is desired, what the fleet reports, and waiting for both to meet."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from ingest.contracts.rollout import RolloutState
from promotion import rollout
from promotion.errors import NotConverged, TakenBack
from promotion.http import Away, JsonClient

ATTEMPTS = 2
"""How often an engine must have failed at a version before that counts: once may be a process that was killed."""


@dataclass(frozen=True)
class FleetView:
    """One policy's part of the fleet. `desired` is None while control does not know the policy."""

    desired: str | None
    converged: bool
    engines: tuple[dict, ...]
    """Those that serve users."""

    def refusals(self, version: str) -> dict[str, str]:
        """Why each engine does not take `version` in, by engine; empty unless all of them refuse it."""
        present = {e["engine_id"]: e.get("refusal") or {} for e in self.engines if e.get("state") != "lost"}
        refused = {
            name: refusal["error"]
            for name, refusal in present.items()
            if refusal.get("version") == version and refusal.get("attempts", 1) >= ATTEMPTS
        }
        return refused if refused.keys() == present.keys() else {}


class ControlClient:
    """Calls to one control process."""

    def __init__(self, http: JsonClient) -> None:
        self._http = http

    async def view(self, policy: str) -> FleetView:
        """What control knows of a policy now."""
        fleet = await self._http.call("GET", "/v1/fleet")
        desired = next((p["desired"] for p in fleet["policies"] if p["name"] == policy), None)
        return FleetView(
            desired=desired["version"] if desired else None,
            converged=bool(fleet["converged"].get(policy, False)),
            engines=tuple(e for e in fleet["engines"] if e["policy"] == policy and e.get("role", "serve") == "serve"),
        )

    async def put_desired(self, policy: str, version: str, path: Path) -> None:
        """Sets what the policy's engines are to serve."""
        await self._http.call("PUT", f"/v1/policies/{policy}/desired", body={"version": version, "path": str(path)})


async def _wait(
    control: str, token: str, policy: str, version: str, timeout: float, checkpoint: Path | None, poll: float
) -> None:
    seen = "control did not answer"
    try:
        async with asyncio.timeout(timeout), aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            client = ControlClient(JsonClient(session, "control", control, token))
            while True:
                standing = rollout.read(checkpoint) if checkpoint else None
                if standing is not None and standing.state in (RolloutState.REJECTED, RolloutState.RETIRED):
                    raise TakenBack(f"{version} was taken back: {standing.reason}")
                try:
                    view = await client.view(policy)
                except Away as away:
                    seen = str(away)
                else:
                    if view.desired == version and view.converged:
                        return
                    behind = [
                        f"{e['engine_id']} {e.get('state', 'joining')} on {e.get('version') or 'nothing'}"
                        + (f" ({e['error']})" if e.get("error") else "")
                        for e in view.engines
                        if e.get("version") != version or e.get("state") != "ready"
                    ]
                    where = ", ".join(behind) or ("no engine is behind" if view.engines else "no engine is registered")
                    seen = f"desired is {view.desired}; {where}"
                await asyncio.sleep(poll)
    except TimeoutError:
        raise NotConverged(
            f"policy {policy} does not serve {version} everywhere after {timeout:g} s: {seen}; "
            "see the reconciler's and the engines' logs"
        ) from None


def wait_converged(
    *,
    control: str,
    token: str,
    policy: str,
    version: str,
    timeout: float,
    checkpoint: Path | None = None,
    poll: float = 0.2,
) -> None:
    """Returns when control desires `version` and every engine in service reports it.

    `timeout` and `poll` in seconds. Raises `NotConverged` naming the engines that are behind; with the version's
    folder `checkpoint`, `TakenBack` as soon as its record says so.
    """
    asyncio.run(_wait(control, token, policy, version, timeout, checkpoint, poll))
