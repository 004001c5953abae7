"""Where a server listens: an address that is checked, its socket, and the names that clients may call it by."""

from __future__ import annotations

import ipaddress
import socket

import uvicorn
from starlette.types import ASGIApp

from vitrail.errors import VitrailError, require

__all__ = ["Address", "address_of", "listen", "names_of", "server_of", "url_of"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address_of(host: str, *, expose: bool, what: str) -> Address:
    """Return a host's address; one beyond loopback requires `expose`."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise VitrailError(f"--host {host!r} is not an address; write 127.0.0.1, or this machine's own") from None
    require(
        address.is_loopback or expose,
        f"--host {host} is reachable from other machines; add --expose if others may use {what}",
    )
    return address


def listen(address: Address, port: int) -> socket.socket:
    # asyncio sends at once (TCP_NODELAY) only if the protocol is named; else a body waits 40 ms for its headers' ACK
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise VitrailError(f"--port {port} is not available ({reason}); give --port 0 for a free one") from None
    return listening


def names_of(address: Address, port: int) -> frozenset[str]:
    """Return the names, with the port, that a request may have as its Host."""
    names = {_written(address)} | ({"localhost"} if address.is_loopback else set())
    return frozenset(f"{name}:{port}" for name in names)


def url_of(address: Address, port: int) -> str:
    return f"http://{_written(address)}:{port}"


def server_of(app: ASGIApp) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
    )


def _written(address: Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)
