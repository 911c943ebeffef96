"""Who sent the request: ready-made answers for ``caller=``.

A caller is a stable account id, never a credential: a token that is refreshed
between two attempts would be a new caller, and a second order. There is no
default, on purpose. Beside these, any function or FastAPI dependency that
returns the id as a string will do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from starlette.requests import Request

from samekey.errors import ConfigurationError

_EVERYONE = "everyone"


@dataclass(frozen=True, slots=True)
class HeaderCaller:
    """The value of a header that a trusted proxy, or the application itself, has checked."""

    name: str


@dataclass(frozen=True, slots=True)
class ApiKeyCaller:
    """A static API key in a header; only its digest becomes the caller."""

    name: str


def header(name: str) -> HeaderCaller:
    """The caller is the value of header ``name``. Only for a header that clients cannot forge."""
    return HeaderCaller(name)


def api_key(name: str = "X-API-Key") -> ApiKeyCaller:
    """The caller is the holder of the static API key in header ``name``, told apart by a digest.

    Not for tokens that are refreshed: use the account they stand for.
    """
    return ApiKeyCaller(name)


def digest_of(credential: str) -> str:
    """A stable id for a static credential, from which it cannot be read back."""
    return "api-key:" + hashlib.sha256(b"samekey:api-key:" + credential.encode()).hexdigest()[:32]


def user(request: Request) -> str | None:
    """The authenticated user of Starlette's AuthenticationMiddleware; None without one."""
    if "user" not in request.scope:
        raise ConfigurationError("callers.user needs Starlette's AuthenticationMiddleware around the app")
    if not request.user.is_authenticated:
        return None
    return str(request.user.identity)


def everyone() -> str:
    """One scope for all clients: whoever knows a key gets its answer. Only where answers are public."""
    return _EVERYONE
