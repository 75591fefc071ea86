"""`python -m streaming STREAM`: hosts one stream until it is stopped. Its exit code tells why it ended."""

import argparse
import os
import sys

from processes.child import end_children
from settings import SettingsError, load_settings
from streaming.catalog import STREAMS
from streaming.failures import FailureClass
from streaming.host import StreamHost, configure_logging, log


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m streaming", description=__doc__)
    parser.add_argument("stream", choices=sorted(STREAMS))
    parser.add_argument("--run-id", help="the Dagster run that this host belongs to")
    arguments = parser.parse_args()
    configure_logging()
    try:
        settings = load_settings()
    except SettingsError as error:
        log.error("%s", error)
        return int(FailureClass.SETTINGS)
    return StreamHost(settings, STREAMS[arguments.stream], arguments.run_id).run()


if __name__ == "__main__":
    code = main()
    # The lease is the JVM's: once this process is gone, it must be free for the next.
    end_children()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads, of which one may be stuck in a call to the JVM
