"""The listening side: uvicorn on a socket of our own, the ready file, and an orderly end."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gateway.settings import GatewaySettings
from kvstore.core.errors import ConfigError
from kvstore.core.process import write_ready_file

_BACKLOG = 2048
# Longer than clients keep idle connections (httpx: 5 s, as uvicorn's default): else the server closes one just
# as a client sends its next turn on it.
_KEEP_ALIVE_S = 75


class _Server(uvicorn.Server):
    """Leaves signals to `__main__`: uvicorn would raise them again at its end, and the exit status would not be 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, with TCP_NODELAY for what it accepts: an event must not wait for the client's ACK.

    Raises: ConfigError when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port") from error
    sock.setblocking(False)
    return sock


async def serve(app: ASGIApp, sock: socket.socket, settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until `stop`, then stop accepting and wait for running streams, up to the deadline; closes `sock`."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_deadline_s)),
    )
    server = _Server(config)
    with _ready_file(settings.ready_file, sock):
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[sock]))
            await stop.wait()
            server.should_exit = True


def url_of(sock: socket.socket) -> str:
    """Base URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _ready_file(path: str | None, sock: socket.socket) -> Iterator[None]:
    """While inside, `path` says where the gateway listens. Raises: ConfigError when it cannot be written."""
    write_ready_file(path, url=url_of(sock))
    try:
        yield
    finally:
        if path:
            Path(path).unlink(missing_ok=True)
