"""The socket that the studio listens on."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from vitrail.server.listening import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_response_is_sent_without_waiting_for_an_acknowledgement(host):
    """Otherwise a body follows its headers about 40 ms later: Nagle's algorithm and delayed acknowledgements."""

    async def is_sent_at_once() -> bool:
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        listening = listen(ipaddress.ip_address(host), 0)
        async with await asyncio.start_server(accepted, sock=listening):
            _, writer = await asyncio.open_connection(host, listening.getsockname()[1])
            try:
                return await found
            finally:
                writer.close()

    with ThreadPoolExecutor(1) as thread:  # this one may have playwright's event loop
        assert thread.submit(asyncio.run, is_sent_at_once()).result()
