"""`python -m gateway`: serves until SIGTERM or SIGINT. Exit status 2: a setting is wrong, one line says which."""

import asyncio
import signal
import sys

import uvloop

from gateway.process import run_gateway
from gateway.settings import GatewaySettings, read_settings
from kvstore.core.log_lines import start_logging
from kvstore.core.process import exit_by_mistake


async def _run_until_signal(settings: GatewaySettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_gateway(settings, stop)


def main() -> None:
    start_logging()
    with exit_by_mistake("stockpot gateway"):
        uvloop.run(_run_until_signal(read_settings(sys.argv[1:])))


if __name__ == "__main__":
    main()
