"""The control process's HTTP interface: keys, policies, engines, swaps, opt-outs, the snapshot for gateways.

Bodies are the types of `ingest.contracts.fleet`, as JSON; errors are `{"error": "a sentence"}`. Without the bearer
token nothing is told but `/health`, not even which paths there are. Handlers are thin: what they do is in `keys`,
`policies`, `engines` and `subjects`, one transaction each.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ingest.contracts.fleet import WORKERS_HEADER, Heartbeat, Policy, Reference, Swap, Version
from serving.config import ControlSettings
from serving.control import engines, keys, policies, subjects
from serving.control.database import Database, bump
from serving.control.errors import ControlError
from serving.control.shared import Control, the_body, the_control
from serving.control.tables import RevisionRow
from serving.fleet.assignments import converged

log = logging.getLogger(__name__)
T = TypeVar("T")


def create_app(database: Database, token: str, settings: ControlSettings) -> FastAPI:
    """The application. It sweeps for lost engines while it runs, and closes the database at its end."""
    control = Control(database, token, settings)

    async def sweep_forever() -> None:
        while True:
            await asyncio.sleep(settings.sweep_seconds)
            try:
                await asyncio.to_thread(control.sweep)
            except Exception as error:  # noqa: BLE001 the database may be away for a while: the next sweep tries again
                log.error("the sweep for lost engines failed: %s", type(error).__name__)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(sweep_forever())
        yield
        task.cancel()
        database.close()

    app = FastAPI(title="everloop control", lifespan=lifespan, openapi_url=None)
    app.state.control = control
    app.add_middleware(_Admission, control=control)
    app.add_exception_handler(ControlError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_parameter)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    app.include_router(router)
    return app


class _Admission:
    """Lets through who has the token, and everybody to `/health`."""

    def __init__(self, app: ASGIApp, control: Control) -> None:
        self._app = app
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_to_all = scope["type"] == "lifespan" or scope["path"] == "/health"
        if open_to_all or self._control.admits(Headers(scope=scope).get("authorization")):
            await self._app(scope, receive, send)
        else:
            refusal = _json({"error": "Send the control token as `Authorization: Bearer …`."}, 401)
            await refusal(scope, receive, send)


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ControlError(f"The body is not what this path takes: {error}.") from None


def _json(value: Any, status: int = 200, **headers: str) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def _answer_error(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, ControlError) else 500
    return _json({"error": str(error)}, status)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _json({"error": f"{request.method} is not served at this path."}, status)


async def _answer_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "as it was registered"
    names = ", ".join(str(wrong["loc"][-1]) for wrong in error.errors())
    return _json({"error": f"Not what this path takes: {names}."}, 400)


router = APIRouter(prefix="/v1")
Shared = Annotated[Control, Depends(the_control)]
Body = Annotated[bytes, Depends(the_body)]


@router.get("/snapshot")
def get_snapshot(
    control: Shared, if_none_match: Annotated[str, Header()] = "", x_everloop_worker: Annotated[str, Header()] = ""
) -> Response:
    workers = control.workers.heard(x_everloop_worker) if x_everloop_worker else None
    headers = {} if workers is None else {WORKERS_HEADER: str(workers)}
    with control.database.read() as session:
        etag = f'"{session.get_one(RevisionRow, 1).value}"'
    if if_none_match == etag:
        return Response(status_code=304, headers={"etag": etag, **headers})
    snapshot = control.snapshot()
    return _json(snapshot, 200, etag=f'"{snapshot.revision}"', **headers)


@router.get("/fleet")
def get_fleet(control: Shared) -> Response:
    snapshot = control.snapshot()
    shown = []
    for engine in snapshot.engines:
        fields = msgspec.to_builtins(
            msgspec.structs.replace(engine, last_seen=control.seen.at(engine.engine_id)), str_keys=True
        )
        del fields["token"]
        shown.append({"role": engine.role, "state": engine.state, "version": engine.version, **fields})
    return _json(
        {
            "policies": snapshot.policies,
            "engines": shown,
            "converged": {
                policy.name: converged(policy, (e for e in snapshot.engines if e.policy == policy.name))
                for policy in snapshot.policies
            },
        }
    )


@router.put("/policies/{name}")
def put_policy(name: str, control: Shared, body: Body) -> Response:
    policy = _read(body, Policy)
    if policy.name != name:
        raise ControlError("The policy's name and the path's differ.")
    with control.database.write() as session:
        policies.put(session, policy)
        session.flush()
        return _json(policies.get(session, name))


@router.put("/policies/{name}/desired")
def put_desired(name: str, control: Shared, body: Body) -> Response:
    with control.database.write() as session:
        policies.set_desired(session, name, _read(body, Version))
    return _json({})


@router.put("/policies/{name}/under_evaluation")
def put_under_evaluation(name: str, control: Shared, body: Body) -> Response:
    with control.database.write() as session:
        policies.set_under_evaluation(session, name, _read(body, Version | None))  # type: ignore[arg-type]
    return _json({})


@router.put("/policies/{name}/references")
def put_reference(name: str, control: Shared, body: Body) -> Response:
    with control.database.write(changes_snapshot=False) as session:
        policies.put_reference(session, name, _read(body, Reference))
    return _json({})


@router.post("/engines/{engine_id}/heartbeat")
def post_heartbeat(engine_id: str, control: Shared, body: Body) -> Response:
    beat = _read(body, Heartbeat)
    with control.database.write(changes_snapshot=False) as session:
        assignment, changed = engines.heartbeat(session, engine_id, beat)
        if changed:
            bump(session)
    control.seen.heard(engine_id)
    return _json(assignment)


@router.delete("/engines/{engine_id}")
def delete_engine(engine_id: str, control: Shared) -> Response:
    with control.database.write() as session:
        engines.remove(session, engine_id)
    return _json({})


@router.post("/swaps")
def post_swap(control: Shared, body: Body) -> Response:
    with control.database.write(changes_snapshot=False) as session:
        engines.add_swap(session, _read(body, Swap))
    return _json({}, 201)


@router.get("/swaps")
def get_swaps(control: Shared, policy: str | None = None, since: float = 0.0) -> Response:
    with control.database.read() as session:
        return _json({"swaps": engines.swaps(session, policy, since)})


@router.post("/keys")
def post_key(control: Shared, body: Body) -> Response:
    with control.database.write() as session:
        key, key_id = keys.create(session, _read(body, keys.NewKey), time.time())
    return _json({"key": key, "key_id": key_id}, 201)


@router.get("/keys")
def get_keys(control: Shared) -> Response:
    with control.database.read() as session:
        shown = [msgspec.to_builtins(key) for key in keys.every(session)]
    for key in shown:
        del key["digest"]
    return _json({"keys": shown})


@router.delete("/keys/{key_id}")
def delete_key(key_id: str, control: Shared) -> Response:
    with control.database.write() as session:
        keys.revoke(session, key_id, time.time())
    return _json({})


@router.put("/opted_out/{subject}")
def put_opted_out(subject: str, control: Shared) -> Response:
    with control.database.write() as session:
        subjects.opt_out(session, subject, time.time())
    return _json({})


@router.get("/opted_out")
def get_opted_out(control: Shared) -> Response:
    with control.database.read() as session:
        return _json({"opted_out": subjects.every(session)})


@router.delete("/opted_out/{subject}")
def delete_opted_out(subject: str, control: Shared) -> Response:
    with control.database.write() as session:
        subjects.opt_in(session, subject)
    return _json({})
