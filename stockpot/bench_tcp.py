"""The yardstick of `stockpot bench store`: a plain TCP socket between two processes.

The peer serves one client at a time. A request is u8 operation and u64 size, little-endian: "g" answers
that many bytes, "p" takes that many and answers one. Run as `python -m stockpot.bench_tcp --ready-file PATH`.
"""

import argparse
import json
import socket
import struct
from pathlib import Path

import numpy as np

_REQUEST = struct.Struct("<cQ")
_VALUE_BYTES_MAX = 64 << 20


class TcpClient:
    """Blocking calls to the peer."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, into: memoryview) -> None:
        """Fill `into`."""
        self._socket.sendall(_REQUEST.pack(b"g", len(into)))
        receive(self._socket, into)

    def put(self, value: memoryview) -> None:
        """Send `value` and wait until the peer has it."""
        self._socket.sendall(_REQUEST.pack(b"p", len(value)))
        self._socket.sendall(value)
        receive(self._socket, memoryview(bytearray(1)))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def receive(peer: socket.socket, into: memoryview) -> None:
    """Fill `into`. Raises: ConnectionResetError when the peer ends before."""
    n_received = 0
    while n_received < len(into):
        n_bytes = peer.recv_into(into[n_received:])
        if n_bytes == 0:
            raise ConnectionResetError("the other side closed the connection")
        n_received += n_bytes


def _serve(peer: socket.socket, memory: memoryview) -> None:
    head = memoryview(bytearray(_REQUEST.size))
    while True:
        receive(peer, head)
        operation, size = _REQUEST.unpack(head)
        if operation == b"g":
            peer.sendall(memory[:size])
        else:
            receive(peer, memory[:size])
            peer.sendall(b"k")


def main() -> None:
    """Serve clients, one after the other, until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready-file", type=Path, required=True)
    ready_file: Path = parser.parse_args().ready_file
    memory = np.ones(_VALUE_BYTES_MAX, np.uint8).data
    with socket.create_server(("127.0.0.1", 0)) as server:
        temporary = ready_file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"address": f"127.0.0.1:{server.getsockname()[1]}"}))
        temporary.rename(ready_file)
        while True:
            peer, _ = server.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with peer:
                try:
                    _serve(peer, memory)
                except ConnectionError:
                    continue


if __name__ == "__main__":
    main()
