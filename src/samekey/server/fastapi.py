"""FastAPI: a dependency that claims, and a guard next to the router that answers.

The claim is a dependency, and the caller a dependency of the claim, so that
authentication always comes before it. The guard is the innermost middleware,
inside of GZip and CORS whatever is added later: it sees the answer before it is
encoded, and after FastAPI's own exception handlers have made it. It touches only
the routes whose dependencies include samekey; on all others nothing is wrapped.

In which order things happen, and what is one transaction, is told in ``exchange``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

try:
    from fastapi import Depends, FastAPI, Header, Request
    from fastapi.dependencies.models import Dependant
    from fastapi.routing import iter_route_contexts
    from starlette._utils import get_route_path  # how Starlette itself matches below a mount
    from starlette.middleware import Middleware
except ModuleNotFoundError as error:
    raise ImportError(
        f'samekey.server.fastapi needs {error.name}; install it with: pip install "samekey[fastapi]"'
    ) from error

from samekey.core.policy import Policy
from samekey.engine import BUSY_SECONDS
from samekey.errors import ConfigurationError, StoreUnavailable
from samekey.server.callers import ApiKeyCaller, HeaderCaller, digest_of
from samekey.server.database import SessionFactory, database_for
from samekey.server.exchange import SCOPE_KEY, App, Exchange, Message, Receive, Scope, Send, Site
from samekey.server.openapi import describe
from samekey.server.operation import Operation
from samekey.stores.drivers.sqlalchemy import joined_now
from samekey.stores.drivers.sqlalchemy_session import JOIN_MODE, unjoined
from samekey.stores.sql.dialect import DEFAULT_TABLE

Caller = Callable[..., Any] | HeaderCaller | ApiKeyCaller
_log = logging.getLogger("samekey")


class RouteClaim:
    """The dependency that claims, with one route's policy, and gives the ``Operation``."""

    def __init__(self, owner: SameKey, caller: Callable[..., Any], policy: Policy) -> None:
        self.owner = owner
        self.policy = policy
        # FastAPI reads the parameters here: the caller is a dependency of the claim.
        parameter = inspect.Parameter
        self.__signature__ = inspect.Signature(
            [
                parameter("request", parameter.POSITIONAL_OR_KEYWORD, annotation=Request),
                parameter("caller", parameter.POSITIONAL_OR_KEYWORD, default=Depends(caller), annotation=Any),
            ]
        )

    async def __call__(self, request: Request, caller: Any) -> Operation:
        return await exchange_of(request).begin(None if caller is None else str(caller))


class RouteSession(RouteClaim):
    """The dependency that gives the joined session; it claims first, whoever else asks for the claim.

    Whatever the application commits in it is committed together with the answer.
    """

    async def __call__(self, request: Request, caller: Any) -> Any:
        await super().__call__(request, caller)
        return await exchange_of(request).session()


class SameKey(RouteClaim):
    """Protects FastAPI routes with the application's own database (joined mode).

    ``engine``: the application's SQLAlchemy ``Engine`` or ``AsyncEngine``, on PostgreSQL or
    an SQLite file. Claim, business change and answer are one transaction on it: a crash at any
    moment leaves all of them or none. ``caller``: a dependency that returns the stable account
    id of whoever sent the request (see ``samekey.server.callers``); never a credential.

    ``namespace`` keeps the keys of several applications in one table apart; ``secret`` (bytes)
    makes the stored ids unguessable; ``sessions`` is the application's sessionmaker or session
    class; ``strict`` refuses a second connection inside an operation on PostgreSQL (on SQLite it
    is always refused); ``busy_seconds`` is the wait for SQLite's single writer; ``documentation``
    is the URL of a page about the application's keys, linked from every problem. All other
    options are fields of ``samekey.Policy`` and the defaults of every route.

    Only what goes through ``samekey.session``, or a sessionmaker made by ``joined``, is part of
    the operation. Writes through any other connection are not.
    """

    def __init__(
        self,
        engine: Any,
        *,
        caller: Caller,
        namespace: str = "",
        secret: bytes | None = None,
        table: str = DEFAULT_TABLE,
        sessions: SessionFactory | None = None,
        strict: bool = True,
        busy_seconds: float = BUSY_SECONDS,
        documentation: str | None = None,
        **options: Any,
    ) -> None:
        self.caller = _caller_dependency(caller)
        super().__init__(self, self.caller, Policy(**options))
        # Kept as a recipe, so that a test can move to another engine with the same settings.
        self.database_on = partial(
            database_for, table=table, sessions=sessions, strict=strict, busy_seconds=busy_seconds
        )
        self.site = Site(self.database_on(engine), namespace, secret, documentation)
        self.session = RouteSession(self, self.caller, self.policy)
        self._started = False
        self._starting: asyncio.Task[None] | None = None

    def move_to(self, site: Site) -> None:
        """Serve from ``site`` from now on; its start-up checks run at the next request."""
        self.site = site
        self._started = False
        self._starting = None

    def route(self, **options: Any) -> RouteClaim:
        """The dependency for a route with options of its own: ``Depends(samekey.route(required=True))``."""
        return RouteClaim(self, self.caller, replace(self.policy, **options))

    def joined(self, sessions: Callable[..., Any]) -> Callable[..., Any]:
        """A sessionmaker whose sessions join the current operation, and are ordinary ones elsewhere."""

        def make(**options: Any) -> Any:
            transaction = joined_now.get()
            if transaction is None or not transaction.is_open:
                return sessions(**options)
            bind = getattr(transaction, "async_connection", None) or transaction.connection
            return sessions(bind=bind, join_transaction_mode=JOIN_MODE, **options)

        return make

    @staticmethod
    def unjoined() -> AbstractContextManager[None]:
        """Inside, a second connection is on purpose: what it writes survives a rollback."""
        return unjoined()

    def install(self, app: FastAPI) -> None:
        """Guard the routes of ``app`` that depend on this object. Once, before the first request."""
        if app.middleware_stack is not None:
            raise ConfigurationError("install samekey before the application serves its first request")
        # Appended, so that it stays innermost: add_middleware puts others in front.
        app.user_middleware.append(Middleware(Guard, samekey=self, fastapi=app))
        make_schema = app.openapi

        def openapi() -> dict[str, Any]:
            fresh = app.openapi_schema is None
            schema = make_schema()
            return describe(schema, _protected_routes(app, self)) if fresh else schema

        app.openapi = openapi  # type: ignore[method-assign]

    async def start(self) -> None:
        """Make or check the table and prove that joined mode works. Called by itself at start-up.

        Raises ConfigurationError (SchemaError) with what to change, StoreUnavailable when the
        database does not answer; then the first request tries again.
        """
        if self._started:
            return
        # Requests that arrive together share one attempt, and its failure: the proof writes, so twenty
        # of them would wait for each other, or one after another for a database that does not answer.
        task = self._starting
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._starting = asyncio.ensure_future(self._start())
            task.add_done_callback(_seen)
        await asyncio.shield(task)

    async def _start(self) -> None:
        site = self.site
        await site.database.start()
        self._started = site is self.site


@dataclass(frozen=True, slots=True)
class ProtectedRoute:
    """A route whose dependencies include samekey."""

    path: str
    pattern: re.Pattern[str]
    methods: frozenset[str]
    policy: Policy


class Guard:
    """The innermost middleware: an exchange for protected routes, nothing for all others."""

    def __init__(self, app: App, samekey: SameKey, fastapi: FastAPI) -> None:
        self._app = app
        self._samekey = samekey
        self._fastapi = fastapi
        self._routes: list[ProtectedRoute] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, self._starting(send))
        policy = self._policy_for(scope) if scope["type"] == "http" else None
        if policy is None:
            return await self._app(scope, receive, send)
        try:
            await self._samekey.start()
        except StoreUnavailable as error:
            _log.warning("samekey could not check its table yet: %s", error)
        await Exchange(self._samekey.site, policy, scope, receive, send).run(self._app)

    def _policy_for(self, scope: Scope) -> Policy | None:
        if self._routes is None:
            self._routes = list(_protected_routes(self._fastapi, self._samekey))
        path = get_route_path(scope)
        for route in self._routes:
            if scope["method"] in route.methods and route.pattern.match(path):
                return route.policy
        return None

    def _starting(self, send: Send) -> Send:
        """``send`` for the lifespan: after the application's own start-up comes ours."""

        async def checked(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self._samekey.start()
                except StoreUnavailable as error:
                    _log.warning("samekey starts although its database does not answer: %s", error)
                except ConfigurationError as error:
                    return await send({"type": "lifespan.startup.failed", "message": f"samekey: {error}"})
            await send(message)

        return checked


def _seen(task: asyncio.Task[None]) -> None:
    # Whoever waited for it may be gone; its failure is told to the next one who asks.
    if not task.cancelled():
        task.exception()


def exchange_of(request: Request) -> Exchange:
    """The exchange of a protected request; ConfigurationError where the guard is missing."""
    exchange = request.scope.get(SCOPE_KEY)
    if not isinstance(exchange, Exchange):
        raise ConfigurationError(
            "this route depends on samekey, but nothing guards it: call samekey.install(app) on the "
            "application that serves it, after its routes are added or before the first request"
        )
    return exchange


def _protected_routes(app: FastAPI, samekey: SameKey) -> Iterator[ProtectedRoute]:
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        if not isinstance(dependant, Dependant) or not route.methods:
            continue
        claims = {claim.policy: claim for claim in _claims_of(dependant, samekey)}
        if not claims:
            continue
        chosen = set(claims) - {samekey.policy} or {samekey.policy}
        if len(chosen) > 1:
            raise ConfigurationError(f"{route.path} depends on samekey with two different sets of options")
        path = route.path or ""
        yield ProtectedRoute(path, route.path_regex, frozenset(route.methods), chosen.pop())


def _claims_of(dependant: Dependant, samekey: SameKey) -> Iterable[RouteClaim]:
    for child in dependant.dependencies:
        if isinstance(child.call, RouteClaim) and child.call.owner is samekey:
            yield child.call
        yield from _claims_of(child, samekey)


def _caller_dependency(caller: Caller) -> Callable[..., Any]:
    if isinstance(caller, HeaderCaller):

        async def header_caller(value: str | None = Header(None, alias=caller.name)) -> str | None:
            return value

        return header_caller
    if isinstance(caller, ApiKeyCaller):

        async def api_key_caller(value: str | None = Header(None, alias=caller.name)) -> str | None:
            return digest_of(value) if value else None

        return api_key_caller
    if not callable(caller):
        raise ConfigurationError(
            "caller= needs a dependency that returns a stable account id: samekey.server.callers has "
            "ready ones (header, api_key, user, everyone)"
        )
    return caller
