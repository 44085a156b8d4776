"""What systemd is told over NOTIFY_SOCKET (sd_notify(3)): ready, stopping, still alive. No-op elsewhere.

A few lines instead of a library: the protocol is one datagram with `NAME=value` lines.
"""

import asyncio
import os
import socket
from collections.abc import Mapping

_WATCHDOG_SHARE = 0.5
"""Of the time that systemd waits: sd_watchdog_enabled(3) advises half."""


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(usec) / 1e6 * _WATCHDOG_SHARE if is_ours and usec.isdigit() else 0.0

    def tell(self, **state: object) -> None:
        """Send `state`, as `READY=1`. A manager that is gone is no trouble of ours."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.sendto("\n".join(f"{name}={value}" for name, value in state.items()).encode(), self._address)
        except OSError:
            pass

    async def keep_watchdog(self) -> None:
        """Say "alive" from this loop until cancelled: a loop that hangs is restarted. Returns if nobody listens."""
        while self._address and self._watchdog_s:
            self.tell(WATCHDOG=1)
            await asyncio.sleep(self._watchdog_s)
