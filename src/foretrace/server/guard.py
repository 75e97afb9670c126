"""Refuses requests that come from elsewhere than the server's own page, and sets the headers that keep it safe.

A page of another site must not be able to ask anything (CSRF), not even by a name that its owner points at this server
(DNS rebinding). A server that is not bound to the loopback interface also asks for a token.

Cookies are sent with links that are followed from other sites (`SameSite=Lax`), so that a shared link opens the page of
the same owner. Changes from other sites are refused by the header that only the own page can set, and by the headers
that say where a request comes from.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretrace.basics.errors import ForetraceError
from foretrace.server.errors import refused, status_of
from foretrace.server.questions import is_id
from foretrace.server.store import new_id

OWNER_COOKIE: Final = "foretrace_owner"
CSRF_HEADER: Final = "x-foretrace"

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NO_HOST: Final = re.compile(r"[^\w.:\[\]-]", re.ASCII)
"""Characters that no host name or address has."""
_YEAR_S: Final = 31_536_000


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    Attributes:
        host: The interface, by name or number.
        port: The port.
        token: What a page must know; None on the loopback interface.
    """

    host: str
    port: int
    token: str | None = None

    @classmethod
    def of(cls, host: str, port: int) -> Address:
        """Makes an address, with a token where others than this machine can reach it."""
        return cls(host, port, None if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        host = self.host if self.host not in ("", "0.0.0.0", "::") else socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/" + ("" if self.token is None else f"?token={self.token}")

    @property
    def token_cookie(self) -> str:
        """The name of the cookie that holds the token; servers on several ports of one machine have one each."""
        return f"foretrace_token_{self.port}"


def is_loopback(host: str) -> bool:
    """Returns whether an interface can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before an application: refuses what does not come from its own page, and adds headers.

    Args:
        app: The application.
        address: Where the server listens.
    """

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._app, self._address = app, address
        names = {"localhost", address.host.lower()}
        if address.token is not None:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._names = names - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if request.url.path.startswith("/api") or request.url.path == "/":
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            response = self._checked(request)
        except ForetraceError as error:
            response = JSONResponse({"error": error.to_dict()}, status_of(error))
        await (response or self._app)(scope, receive, send_guarded)

    def _checked(self, request: Request) -> Response | None:
        """Returns the answer to a request that brings the token; None for one to pass on.

        Raises InputError for requests that are refused.
        """
        headers = request.headers
        self._check_host(headers.get("host", ""))
        is_reading = request.method in ("GET", "HEAD")
        if not is_reading and headers.get(CSRF_HEADER) != "1":
            raise refused("a request that changes something needs the header X-Foretrace: 1")
        if not is_reading or request.url.path.startswith("/api"):
            _check_origin(headers)
        shown_token = request.query_params.get("token")
        token = self._address.token
        if token is None:
            return None
        if shown_token is not None and request.url.path == "/":
            if not _same(shown_token, token):
                raise refused("the token is wrong", _TOKEN_HINT)
            response = RedirectResponse("/", 303)
            response.set_cookie(self._address.token_cookie, token, _YEAR_S, httponly=True, samesite="lax")
            return response
        if not _same(request.cookies.get(self._address.token_cookie, ""), token):
            raise refused("this server needs its token", _TOKEN_HINT)
        return None

    def _check_host(self, host: str) -> None:
        """Raises an error where the page was opened by a name that may belong to somebody else.

        IP addresses are allowed: nobody can point one at another machine through DNS.
        """
        try:
            name = "" if _NO_HOST.search(host) else (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            name = ""
        try:
            number = ipaddress.ip_address(name)
            if number.is_loopback or self._address.token is not None:
                return
        except ValueError:
            pass
        if name not in self._names:
            raise refused(
                "the host name of the request is not a name of this server", "open the address that it printed"
            )


_TOKEN_HINT: Final = "open the address that foretrace serve printed, with its token"


def _same(text: str, token: str) -> bool:
    return hmac.compare_digest(text.encode(), token.encode())


def _check_origin(headers: Headers) -> None:
    """Raises an error where a page of another site sends the request."""
    origins = headers.getlist("origin")
    if len(origins) > 1 or any(_place(origin) != headers.get("host", "").lower() for origin in origins):
        raise refused("the request comes from a page of another site")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise refused("the request comes from a page of another site")


def _place(origin: str) -> str | None:
    """Returns the host and port of an origin of the web; None for any other.

    Both schemes are taken: a proxy with TLS in front of the server has an origin of its own.
    """
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


class Owners:
    """Tells who sends a request, by a cookie that only this server can have made.

    The cookie is a random id and its signature: an id that a client makes up has none.

    Args:
        key: What signs them.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def needed(self, request: Request) -> str:
        """Returns who sends a request. Raises InputError where their browser has not opened the page yet."""
        owner = self._of(request)
        if owner is None:
            raise refused("the request names no owner", "open the page first, and allow its cookie")
        return owner

    def given(self, request: Request, response: Response) -> Response:
        """Returns a response that gives a browser its owner, where it has none and opens the page.

        A browser also leaves the cookie out of requests that pages of other sites make in the background. These must
        not replace the owner that it has.
        """
        opens_page = (
            request.headers.get("sec-fetch-mode", "navigate") == "navigate"
            and request.headers.get("sec-fetch-dest", "document") == "document"
        )
        if opens_page and self._of(request) is None:
            owner = new_id()
            cookie = f"{owner}.{self._signature(owner)}"
            response.set_cookie(OWNER_COOKIE, cookie, _YEAR_S, httponly=True, samesite="lax")
        return response

    def _of(self, request: Request) -> str | None:
        owner, _, signature = request.cookies.get(OWNER_COOKIE, "").partition(".")
        return owner if is_id(owner) and _same(signature, self._signature(owner)) else None

    def _signature(self, owner: str) -> str:
        return hmac.digest(self._key, owner.encode(), "sha256").hex()
