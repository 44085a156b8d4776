"""`python -m gateway`: reads the settings, serves until SIGTERM or SIGINT. Exit status 2: a setting is wrong."""

import asyncio
import signal
import sys

import uvloop

from gateway.log import start_logging
from gateway.process import run_gateway
from gateway.settings import GatewaySettings, read_settings
from kvstore.core.errors import ConfigError


async def _run_until_signal(settings: GatewaySettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_gateway(settings, stop)


def main() -> int:
    """The exit status."""
    status = 0
    start_logging()
    try:
        uvloop.run(_run_until_signal(read_settings(sys.argv[1:])))
    except* ConfigError as mistakes:
        print(f"gateway: {_first(mistakes)}", file=sys.stderr)  # noqa: T201
        status = 2
    return status


def _first(group: BaseExceptionGroup[ConfigError]) -> BaseException:
    """The first of the errors, which may lie in groups within groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
