"""What the OpenAPI document says of protected operations: the header, the problems, the retention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from samekey.core.policy import Policy

_PROBLEMS = {
    "400": "The idempotency key or the caller is missing or not valid "
    "(`missing-key`, `invalid-key`, `caller-missing`).",
    "409": "The first request still runs, or its answer cannot be given (`in-progress`, `outcome-unknown`, "
    "`answer-not-kept`, `answer-expired`).",
    "413": "The request body is too large (`body-too-large`).",
    "422": "The key was used for another request (`key-reused`).",
    "503": "Nothing was done; retry with the same key (`store-unavailable`, `store-busy`, `not-committed`).",
}
_SCHEMA_NAME = "SamekeyProblem"
_SCHEMA = {
    "title": "Problem",
    "description": "Problem details (RFC 9457) with what a client may do next.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable", "safe_to_use_new_key"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {
            "type": "boolean",
            "description": "The same request with the same key may be sent again.",
        },
        "safe_to_use_new_key": {"type": "boolean", "description": "A new key cannot do the operation twice."},
    },
}


class Protected(Protocol):
    """A protected route: its path as the document writes it, its methods and its policy."""

    @property
    def path(self) -> str: ...
    @property
    def methods(self) -> frozenset[str]: ...
    @property
    def policy(self) -> Policy: ...


def describe(schema: dict[str, Any], routes: Iterable[Protected]) -> dict[str, Any]:
    """Add to ``schema`` (an OpenAPI document, changed in place) what is true of protected operations."""
    paths, found = schema.get("paths", {}), False
    for route in routes:
        for method in route.methods & route.policy.methods:
            operation = paths.get(route.path, {}).get(method.lower())
            if operation is not None:
                _describe_operation(operation, route.policy)
                found = True
    if found:
        schema.setdefault("components", {}).setdefault("schemas", {})[_SCHEMA_NAME] = _SCHEMA
    return schema


def _describe_operation(operation: dict[str, Any], policy: Policy) -> None:
    seconds = round(policy.retention_seconds)
    operation.setdefault("parameters", []).append(
        {
            "name": policy.header,
            "in": "header",
            "required": policy.required,
            "description": (
                "One key per operation, the same for every retry: 1 to 255 visible ASCII characters, "
                f"quoted or bare; a UUID is a good one. The first answer is kept for {seconds} seconds "
                f"after completion and replayed with `{policy.marker}: true`."
            ),
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, **_format(policy)},
        }
    )
    operation["x-idempotency-retention-seconds"] = seconds
    responses = operation.setdefault("responses", {})
    mismatch = str(policy.mismatch_status)
    for status, description in _PROBLEMS.items():
        shown = mismatch if status == "422" else status
        response = responses.setdefault(shown, {"description": description})
        if description not in response["description"]:
            response["description"] += f" Or: {description}"
        response.setdefault("content", {})["application/problem+json"] = {
            "schema": {"$ref": f"#/components/schemas/{_SCHEMA_NAME}"}
        }


def _format(policy: Policy) -> dict[str, str]:
    if policy.key_format == "uuid":
        return {"format": "uuid"}
    return {} if policy.key_pattern is None else {"pattern": policy.key_pattern}
