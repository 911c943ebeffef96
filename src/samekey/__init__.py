"""samekey: same key, same result. Makes retries safe on the server, the client and the consumer side.

Importing this package needs no third-party module. The FastAPI adapter is
``samekey.server.fastapi.SameKey``, also reachable as ``samekey.SameKey`` where
the extra ``samekey[fastapi]`` is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from samekey.core.policy import FingerprintRule, Policy
from samekey.errors import SamekeyError

if TYPE_CHECKING:
    from samekey.server import callers as callers
    from samekey.server.fastapi import SameKey as SameKey
    from samekey.server.operation import Operation as Operation
    from samekey.server.operation import current_operation as current_operation

__version__ = "0.1.0"
__all__ = [
    "FingerprintRule",
    "Operation",
    "Policy",
    "SameKey",
    "SamekeyError",
    "callers",
    "current_operation",
]

# Loaded on first use, because they need an extra: name -> (module, attribute).
_LAZY = {
    "SameKey": ("samekey.server.fastapi", "SameKey"),
    "Operation": ("samekey.server.operation", "Operation"),
    "callers": ("samekey.server.callers", None),
    "current_operation": ("samekey.server.operation", "current_operation"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'samekey' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f'samekey.{name} needs {error.name}; install it with: pip install "samekey[fastapi]"'
        ) from error
    return module if attribute is None else getattr(module, attribute)
