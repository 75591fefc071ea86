"""Becomes a command that gets a signal when its parent ends: `tied.py PARENT_PID SIGNAL COMMAND…`.

A file of its own, run before the command, because code between fork and exec is unsafe in a parent with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int, number: int) -> None:
    """Asks the kernel for the signal; on systems other than Linux nothing is done."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    tie_to_parent(int(sys.argv[1]), int(sys.argv[2]))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(sys.argv[3], sys.argv[3:])
