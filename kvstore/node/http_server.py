"""HTTP for those who watch a node: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes.

Served on the node's own loop, since state belongs to its one task: an answer says that the loop turns.
"""

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvstore.node.lifecycle import Lifecycle, Phase

_REQUEST_TIMEOUT_S = 5.0
_PLAIN = "text/plain; charset=utf-8"


class HttpServer:
    """Answers GET until it is closed; one request a connection."""

    def __init__(self, registry: CollectorRegistry, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._lifecycle = lifecycle

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Serve on `host:port` (0: a free one). Raises: OSError."""
        return await asyncio.start_server(self._answer, host.strip("[]"), port)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, content_type, body = self._response(head)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client's trouble, and nothing of ours depends on it
        finally:
            writer.close()

    def _response(self, head: bytes) -> tuple[str, str, bytes]:
        """Status, content type and body for a request's `head`."""
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return "405 Method Not Allowed", _PLAIN, b"only GET is answered here\n"
        match path:
            case b"/metrics":
                return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case b"/healthz":
                return "200 OK", _PLAIN, b"ok\n"
            case b"/readyz":
                is_ready = self._lifecycle.phase is Phase.SERVING
                status = "200 OK" if is_ready else "503 Service Unavailable"
                return status, _PLAIN, f"{self._lifecycle.phase.value}\n".encode()
            case _:
                return "404 Not Found", _PLAIN, b"/metrics, /healthz and /readyz are here\n"
