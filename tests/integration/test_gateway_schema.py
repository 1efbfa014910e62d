"""Schemathesis over the published OpenAPI document, against a real gateway: valid data, broken data, unusual methods.

Whatever it sends, nothing is a server error, and each answer is one that the document names, in the shape that it
names; what breaks the document is refused. The data is the same in each run.
"""

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from serving.gateway.openapi import PATH, document
from tests.integration.serving_stack import Stack, running

pytestmark = pytest.mark.integration
SCHEMA = schemathesis.openapi.from_dict(document())
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]
EXAMPLES = 15
TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
SIGNAL = {"target": "turn", "id": "x", "kind": "accept"}
VALID = {
    "/v1/chat/completions": TALK,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": TALK,
    "/v1/messages/count_tokens": TALK,
    "/v1/feedback": SIGNAL,
    "/v1/feedback/batch": {"items": [SIGNAL]},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("schema"), settings={"default_policy": "policy"}) as stack:
        stack.shared_key = stack.key()
        yield stack


@pytest.mark.parametrize("path", document()["paths"])
def test_the_document_is_published_and_says_what_needs_a_key(stack: Stack, path: str) -> None:
    ((method, operation),) = document()["paths"][path].items()
    answer = httpx.request(method, stack.gateway_url + path, content=b"{}")
    assert answer.status_code == (200 if operation.get("security") == [] else 401), answer.text
    if path == PATH:
        assert answer.json() == document()


def test_a_valid_request_is_answered(stack: Stack) -> None:
    """What the next test sends is not all refused for a reason of its own."""
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    for operation in (found.ok() for found in SCHEMA.get_all_operations()):
        body = {"body": VALID[operation.path]} if operation.path in VALID else {}
        case = operation.Case(path_parameters={"model": "policy"}, **body)
        answer = case.call_and_validate(base_url=stack.gateway_url, headers=headers, checks=CHECKS)
        assert answer.status_code in (200, 202), answer.text


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_names(stack: Stack, case: schemathesis.Case) -> None:
    headers = {"authorization": f"Bearer {stack.shared_key}"}
    case.call_and_validate(base_url=stack.gateway_url, headers=headers, checks=CHECKS)
