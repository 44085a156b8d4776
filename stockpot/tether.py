"""Run a command that cannot outlive its parent.

    python tether.py PARENT_PID COMMAND [ARGUMENT ...]

The supervisor starts each process through this file, so that even a supervisor ended by SIGKILL leaves
none behind. The kernel does the work (PR_SET_PDEATHSIG, which survives exec); a program of its own, and
not a `preexec_fn`, because Python code between fork and exec can deadlock beside threads. Imports only
the standard library, so it starts in some 20 ms.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    """Tie this process to the parent and become the command; never returns.

    Raises: OSError when the command cannot be run."""
    parent_pid, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the tie was made.
    if os.getppid() == int(parent_pid):
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
