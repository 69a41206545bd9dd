"""Endpoints of webhooks: check their URLs, find the keys for one, and decide which addresses may be called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from jetjobs.model.errors import DefinitionError

T = TypeVar("T")

MAX_URL = 2_000
_URL = re.compile(r"https?://[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+", re.ASCII | re.IGNORECASE)
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)
_HOST = re.compile(r"(\*\.)?([^:\[\]]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_UNICAST = ip_network("2000::/3")
"""The only part of IPv6 that has global addresses."""
_NAT64 = ip_network("64:ff9b::/96")


class Endpoint(NamedTuple):
    """The parts of a URL that a request needs."""

    scheme: str
    host: str
    """A name or an address, in lower case, without brackets."""
    port: int
    path: str
    query: str

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """ValueError for a URL that webhooks are not sent to; its text completes "invalid callback: "."""
    if len(url) > MAX_URL:
        raise ValueError(f"a URL has at most {MAX_URL:,} characters")
    if not _URL.fullmatch(url):
        raise ValueError("use an http or https URL of ASCII characters, others percent-encoded")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("a URL must not contain a user or password")
    host = (parts.hostname or "").removesuffix(".")
    if not _NAME.fullmatch(host) and ("%" in host or not _address(host)):
        raise ValueError("the URL has no valid host")
    if parts.port == 0:
        raise ValueError("port 0 cannot be called")
    if {".", ".."} & set(unquote(parts.path).split("/")):
        raise ValueError("the path must not contain the segments . or ..")
    return Endpoint(parts.scheme, host, parts.port or _PORTS[parts.scheme], parts.path or "/", parts.query)


def check_callback(url: object) -> str:
    """The URL itself. DefinitionError if a webhook could never be sent to it. The message does not repeat the URL,
    which may contain a token."""
    if not isinstance(url, str):
        raise DefinitionError(f"callback must be a URL, not {type(url).__name__}")
    try:
        parse_endpoint(url)
    except ValueError as error:
        raise DefinitionError(f"invalid callback: {error}") from None
    return url


# Settings name endpoints by host, or by the beginning of their URLs.


def check_host(entry: str) -> str:
    """A host of a setting in lower case. ValueError unless it is a name, `*.NAME` or an address, each with an
    optional port."""
    found = _HOST.fullmatch(entry.strip().lower())
    host = found[2].strip("[]") if found else ""
    if not found or not (_NAME.fullmatch(host) or (_address(host) and not found[1])):
        raise ValueError(f"invalid host {entry!r:.80}: use a name, *.NAME or an address, with or without :PORT")
    return found[0]


def check_pattern(entry: str) -> str:
    """The place of a secret in its setting. ValueError unless it is a host or the beginning of a URL."""
    if "://" not in entry:
        return check_host(entry)
    if parse_endpoint(entry).query or "#" in entry:
        raise ValueError("the beginning of a URL ends with its path")
    return entry


def matches_host(entry: str, endpoint: Endpoint) -> bool:
    """Whether a host of a setting is that of the endpoint. A name never matches an address, and the reverse.

    >>> matches_host("*.example.com:8443", parse_endpoint("https://a.example.com:8443/x"))
    True
    """
    found = _HOST.fullmatch(entry)
    if found is None or (found[3] and int(found[3]) != endpoint.port):
        return False
    host = found[2].strip("[]")
    if found[1]:
        return endpoint.host.endswith(f".{host}")
    ours = _address(host)
    return ours == _address(endpoint.host) if ours else host == endpoint.host


def keys_for(endpoint: Endpoint, secrets: Mapping[str, T], default: T) -> T:
    """The keys of the entry that fits best: the longest beginning of the URL, else the host, else the default.

    >>> keys_for(parse_endpoint("https://a.example/hooks/7"), {"https://a.example/hook": 1, "a.example": 2}, 3)
    2
    """
    fitting = {entry: _fit(entry, endpoint) for entry in secrets}
    best = max(fitting, key=lambda entry: fitting[entry], default="")
    return secrets[best] if best and fitting[best] else default


def _fit(entry: str, endpoint: Endpoint) -> int:
    """How well an entry fits; 0 if it does not."""
    if "://" not in entry:
        return int(matches_host(entry, endpoint))
    prefix = parse_endpoint(entry)
    if prefix[:3] != endpoint[:3]:
        return 0
    folder = prefix.path.rstrip("/")
    return 2 + len(folder) if f"{endpoint.path}/".startswith(f"{folder}/") else 0


# Addresses


def is_public(address: str) -> bool:
    """Whether an address is reachable from the whole internet, also through the IPv4 address that it embeds.

    >>> [is_public(one) for one in ("1.1.1.1", "127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2606:4700::1")]
    [True, False, False, False, True]
    """
    found = _address(address)
    if isinstance(found, IPv6Address):
        inner = list(_embedded(found))
        return all(map(_is_public_v4, inner)) if inner else found in _UNICAST and found.is_global
    return found is not None and _is_public_v4(found)


def _is_public_v4(address: IPv4Address) -> bool:
    return address.is_global and not address.is_multicast


def _embedded(address: IPv6Address) -> Iterable[IPv4Address]:
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
