"""`python -m engine`: one llama.cpp worker, until SIGTERM or SIGINT. Exit status 2: a setting is wrong."""

import logging
import sys

import msgspec
import uvloop

from engine.worker.process import load_engine, serve
from engine.worker.settings import read_settings
from kvstore.core.log_lines import KeyValues, start_logging
from kvstore.core.process import exit_by_mistake

log = logging.getLogger("engine")


def main() -> None:
    start_logging()
    with exit_by_mistake("stockpot worker"):
        settings = read_settings(sys.argv[1:])
        log.info("worker_start %s", KeyValues(msgspec.structs.asdict(settings)))
        engine = load_engine(settings)
        uvloop.run(serve(settings, engine))
        engine.close()
        log.info("worker_end")


if __name__ == "__main__":
    main()
