"""A small process that behaves as the supervisor's children do. Run, never imported.

python stand_in.py [--listen PORT] [--stubborn] [--never-ready] [--die] --ready-file PATH
"""

import argparse
import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int, default=0)
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--die", action="store_true", help="end with exit code 3 before being ready")
    parser.add_argument("--ready-file", type=Path, required=True)
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write("stand-in says hello\n")
    sys.stdout.flush()
    if options.die:
        sys.exit("stand-in cannot go on")
    with socket.create_server(("127.0.0.1", options.listen)):
        if not options.never_ready:
            partial = options.ready_file.with_suffix(".partial")
            partial.write_text(json.dumps({"pid": os.getpid()}))
            partial.rename(options.ready_file)
        while True:
            signal.pause()


main()
