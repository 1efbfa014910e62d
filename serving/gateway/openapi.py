"""The gateway's OpenAPI 3.1 document, made of what the code knows, and served at `GET /openapi.json` without a key.

A field has a type here as far as the gateway checks it. What an engine alone checks is free: its own document, at the
engine, says more. Errors stand in the shape of each format's clients; which ones a path has comes from the family in
`errors.py`.
"""

from collections.abc import Iterable

import msgspec

from serving.gateway import counting, errors, feedback
from serving.gateway.dialects import DIALECTS
from serving.gateway.dialects.base import INTERNAL, Dialect
from serving.gateway.dialects.values import MOST_VALUES
from serving.gateway.progress import ARMS

PATH = "/openapi.json"


def _nullable(kind: str, **more: object) -> dict:
    return {"type": [kind, "null"], **more}


def _object(required: Iterable[str] = (), **properties: dict) -> dict:
    return {"type": "object", "required": list(required), "properties": properties}


# Requests

_NULL = {"type": "null"}
_OBJECTS_IF_LIST = {"items": {"type": "object"}}
_TEXT_OR_BLOCKS = {"type": ["string", "array", "null"], **_OBJECTS_IF_LIST}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_ROLE = {"type": "string"}


def _messages(content: dict) -> dict:
    return {"type": "array", "minItems": 1, "items": _object(["role"], role=_ROLE, content=content)}


_EVERYWHERE = {
    "model": _nullable("string", description="A policy's name, of `GET /v1/models`."),
    "stream": _nullable("boolean"),
    "use_beam_search": {"enum": [False, None]},
}
_OWN: dict[str, dict[str, dict]] = {
    "chat": {
        "messages": _messages(_OBJECTS_IF_LIST),
        "stream_options": _nullable("object"),
        "user": _nullable("string"),
    },
    "completions": {
        "prompt": {
            "anyOf": [
                {"type": "string"},
                _IDS,
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
                {"type": "array", "minItems": 1, "items": _IDS},
            ]
        },
        "user": _nullable("string"),
    },
    "responses": {
        "input": {
            "type": ["string", "array"],
            "minItems": 1,
            "items": _object(content=_OBJECTS_IF_LIST, output=_OBJECTS_IF_LIST),
        },
        "instructions": _nullable("string"),
        "background": {"enum": [False, None]},
        "previous_response_id": _NULL,
        "conversation": _NULL,
        "prompt": _NULL,
        "user": _nullable("string"),
    },
    "messages": {
        "messages": _messages(_TEXT_OR_BLOCKS),
        "system": _TEXT_OR_BLOCKS,
        "metadata": _nullable("object", properties={"user_id": _nullable("string")}),
    },
}
"""What the formats themselves check, beside what `Dialect.read` does for all."""
_NEEDED = {"chat": "messages", "completions": "prompt", "responses": "input", "messages": "messages"}


def _body(dialect: Dialect) -> dict:
    fields: dict[str, dict] = {name: {} for name in sorted(dialect.sent | dialect.accepted)}
    limits = {name: _nullable("integer", minimum=0) for name in dialect.limits}
    if "n" in dialect.sent:
        limits["n"] = _nullable("integer", minimum=1)
    return _object([_NEEDED[dialect.name]], **(fields | _EVERYWHERE | limits | _OWN[dialect.name]))


def _header(name: str, description: str, **schema: object) -> dict:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string", **schema}}


_TURN_HEADERS = [
    _header("x-everloop-session", "The caller's own name for its session."),
    _header("x-everloop-arm", "`evaluation` needs that role; empty is as absent.", enum=[*ARMS, ""]),
    _header("x-everloop-version", "The only version that may answer; a 409 where no engine has it."),
    _header("x-everloop-train", "`no`: the turn is recorded, and never trained on."),
]
_ANTHROPIC_VERSION = _header("anthropic-version", "With it, answers and errors have Anthropic's shape.")


# Answers


def _ref(name: str) -> dict:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict) -> dict:
    return {"content": {"application/json": {"schema": schema}}}


_ID = {"description": "The request's id.", "required": True, "schema": {"type": "string", "minLength": 1}}
_ANSWERS = {
    "chat": _object(["id", "object", "model", "choices"], object={"const": "chat.completion"}),
    "completions": _object(["id", "object", "model", "choices"], object={"const": "text_completion"}),
    "responses": _object(["id", "object", "model", "output", "status"], object={"const": "response"}),
    "messages": _object(["id", "type", "role", "model", "content"], type={"const": "message"}),
}
_ERRORS = errors.GatewayError.__subclasses__()
_SCHEMAS = {
    "OpenAIModel": _object(["id", "object", "created", "owned_by"], object={"const": "model"}),
    "AnthropicModel": _object(["id", "type", "display_name", "created_at"], type={"const": "model"}),
    "OpenAIError": _object(
        ["error"],
        error=_object(
            ["message", "type", "param", "code"],
            message={"type": "string"},
            type={"enum": sorted({errors.GatewayError.kind} | {kind.kind for kind in _ERRORS})},
            param=_nullable("string"),
            code={"type": "string"},
        ),
    ),
    "AnthropicError": _object(
        ["type", "error"],
        type={"const": "error"},
        error=_object(["type", "message"], type={"type": "string"}, message={"type": "string"}),
    ),
}


def _headers(*more: str) -> dict:
    return {"x-request-id": _ID, **{name: {"schema": {"type": "string"}} for name in more}}


# Errors, by the shape that they have: OpenAI's, Anthropic's (whose clients look for the id under a name of their own,
# too), or, where a header decides, either

_SHAPES = {
    "OpenAI": (_ref("OpenAIError"), _headers()),
    "Anthropic": (_ref("AnthropicError"), _headers() | {"request-id": _ID}),
    "Either": ({"anyOf": [_ref("OpenAIError"), _ref("AnthropicError")]}, _headers()),
}
_BODY = (errors.BadRequest, errors.Unauthorized, errors.Forbidden, errors.BodyTimeout, errors.TooLarge)
_BUSY = (errors.RateLimited, errors.Unavailable)
_ASKED = (*_BODY, *_BUSY, errors.NotFound, errors.EngineErred, errors.EngineFailed)
_TURN = (*_ASKED, errors.VersionUnavailable)


def _responses() -> dict[str, dict]:
    """Each error answer by shape and status; what an engine refuses has a status of 400, too."""
    found: dict[str, dict] = {}
    for kind in _ERRORS:
        if kind in (errors.EngineRefused, errors.MethodNotAllowed, errors.HeadTooLarge):  # of no operation of its own
            continue
        for shape, (schema, headers) in _SHAPES.items():
            if kind.retry_after is not None:
                headers = headers | {"retry-after": {"required": True, "schema": {"type": "integer", "minimum": 1}}}
            answer = found.setdefault(f"{shape}{kind.status}", {"description": "", "headers": headers, **_json(schema)})
            answer["description"] += f"`{kind.code}`: {(kind.__doc__ or '').splitlines()[0]} "
    return found


def _failures(shape: str, *kinds: type[errors.GatewayError]) -> dict[str, dict]:
    statuses = sorted({kind.status for kind in kinds})
    return {str(status): {"$ref": f"#/components/responses/{shape}{status}"} for status in statuses}


# Paths


def _post(summary: str, body: dict, status: int, answer: dict, failures: dict, parameters: Iterable[dict] = ()) -> dict:
    return {
        "post": {
            "summary": summary,
            "parameters": list(parameters),
            "requestBody": {"required": True, **_json(body)},
            "responses": {str(status): {"description": "The answer.", **answer}, **failures},
        }
    }


def _get(summary: str, answer: dict, failures: dict, parameters: Iterable[dict] = ()) -> dict:
    responses = {"200": {"description": "The answer.", "headers": _headers(), **_json(answer)}, **failures}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": responses}}


def _turn(dialect: Dialect) -> dict:
    shape = _shape(dialect)
    answer = _json(_ANSWERS[dialect.name])
    answer["content"]["text/event-stream"] = {}
    answer["headers"] = _SHAPES[shape][1] | _headers("x-everloop-turn-id", "x-everloop-version", "x-everloop-dropped")
    return _post(f"One turn: {dialect.name}.", _body(dialect), 200, answer, _failures(shape, *_TURN), _TURN_HEADERS)


def _shape(dialect: Dialect) -> str:
    return "Anthropic" if dialect.name == "messages" else "OpenAI"


def _count() -> dict:
    dialect = DIALECTS["/v1/messages"]
    answer = {"headers": _SHAPES["Anthropic"][1], **_json(_object(["input_tokens"], input_tokens={"type": "integer"}))}
    return _post("How long a prompt is.", _body(dialect), 200, answer, _failures("Anthropic", *_ASKED))


def _feedback(summary: str, body: dict, **ids: dict) -> dict:
    failures = _failures("Either", *_BODY, *_BUSY, errors.CaptureFailed)
    return _post(summary, body, 202, {"headers": _headers(), **_json(_object(ids, **ids))}, failures)


def _open(summary: str, answer: dict) -> dict:
    """A path that needs no key."""
    found = _get(summary, answer, {})
    found["get"]["security"] = []
    return found


def _paths() -> dict[str, dict]:
    signals = {"type": "array", "minItems": 1, "maxItems": feedback.MAX_ITEMS, "items": _ref("Item")}
    kept = {"type": "string"}
    model = {"anyOf": [_ref("OpenAIModel"), _ref("AnthropicModel")]}
    unknown = _failures("Either", errors.Unauthorized, errors.NotFound)
    named = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    models = _object(["data"], data={"type": "array", "items": model})
    return {
        **{path: _turn(dialect) for path, dialect in DIALECTS.items()},
        counting.PATH: _count(),
        "/v1/models": _get(
            "The policies, as models.", models, _failures("Either", errors.Unauthorized), [_ANTHROPIC_VERSION]
        ),
        "/v1/models/{model}": _get("One policy.", model, unknown, [_ANTHROPIC_VERSION, named]),
        "/v1/feedback": _feedback("One signal.", _ref("Item"), feedback_id=kept),
        "/v1/feedback/batch": _feedback(
            "Several signals: all of them, or none.",
            _object(["items"], items=signals),
            feedback_ids={"type": "array", "items": kept},
        ),
        "/health": _open("Whether this process answers.", _object(["status"], status={"const": "ok"})),
        PATH: _open("This document.", {"type": "object"}),
    }


def document() -> dict:
    """The document."""
    _, parts = msgspec.json.schema_components([feedback.Item], ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "everloop gateway",
            "version": "1",
            "description": "Fields that are not named here are left out of what the engine gets, and told in "
            "`x-everloop-dropped`. Those that steer the engine itself need a key with the role admin: "
            f"{', '.join(sorted(INTERNAL))}. So do parts of a content that carry embeddings; the `uuid` of a part is "
            f"left out without that role. A body has at most {MOST_VALUES:,} values, token ids of a prompt aside.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {**_SCHEMAS, **parts},
            "responses": _responses(),
        },
    }
