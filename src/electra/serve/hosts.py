"""The names of a server -> no web page of another site can use it.

A browser keeps a page from reading the answers of other sites. But whoever owns the name of the page's site
can let it point to 127.0.0.1 once the page is loaded (DNS rebinding): then, to the browser, this server is
that site. The name is still in the header `Host`, and the page's own site in `Origin`. So a server without a
key answers to its own names only. An IP address is no name that somebody could let point elsewhere.
"""

import ipaddress
import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from electra.errors import InputError
from electra.serve.errors import ApiError, shortened

ANY = "*"
"""The name of a server that answers to all names."""
_AUTHORITY = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s\[\]:/?#@]+)(:\d*)?", re.IGNORECASE)
"""A host and its port, as in `Host` and behind the scheme of an `Origin`."""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """What requests may call the server; names for this machine itself are always among it."""

    allowed: frozenset[str] = frozenset()
    """Other names, without port; `*` stands for all."""
    takes_addresses: bool = False
    """Whether any IP address is a name, too: for a server that is reached from other machines."""

    def __post_init__(self) -> None:
        for name in self.allowed:
            if name != ANY and (not name or _name_of(name) != name.lower()):
                raise InputError(
                    f"allowed_hosts: {name!r} is no name of a host, such as example.org (without port)"
                )

    def check(self, headers: Headers) -> None:
        """Refuse a request to another name, or from a page of another site."""
        # All browsers send a host. What does not is a simple probe.
        host = headers.get("host")
        if ANY in self.allowed or (host is None and "origin" not in headers):
            return
        called = _name_of(host or "")
        if not self._is_own(called) and not (self.takes_addresses and is_address(called)):
            raise ApiError(
                421,
                f"this server does not answer to the name {shortened(host or '')!r}: use its address, or "
                "start it with --allowed_hosts NAME",
            )
        origin = headers.get("origin")
        if origin is not None:
            site = _name_of(origin.partition("://")[2])
            if site != called and not self._is_own(site):
                raise ApiError(
                    403,
                    f"this server does not answer to web pages of {shortened(origin)!r}: start it with "
                    "--allowed_hosts NAME if they may use it",
                )

    def _is_own(self, name: str) -> bool:
        return is_loopback(name) or name in {known.lower() for known in self.allowed}


def _name_of(authority: str) -> str:
    """The host in lower case, without brackets, final dot and port; "" if there is none."""
    found = _AUTHORITY.fullmatch(authority)
    return found["name"].strip("[]").removesuffix(".").lower() if found else ""


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether only this machine can reach a name."""
    return ipaddress.ip_address(name).is_loopback if is_address(name) else name == "localhost"
