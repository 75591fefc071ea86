"""How a run asks `tidewatch up` for a code server with the code that is on the disk now."""

from pathlib import Path

from processes.child import wait_until

TAKEN = "taken"
TAKE_SECONDS = 15
# What a start of the code server may take on a small machine that is busy.
ANSWER_SECONDS = 120


class NoCodeServer(Exception):
    """The code server was ended for new code, and none with that code answers."""


def wish_file(run_folder: Path) -> Path:
    """It is there from the wish until another code server answers, and says `taken` once somebody sees to it."""
    return run_folder / "code-server.wanted"


def replace_code_server(
    run_folder: Path, take_seconds: float = TAKE_SECONDS, answer_seconds: float = ANSWER_SECONDS
) -> bool:
    """False where no `tidewatch up` sees to it, and the code server is as it was."""
    wish = wish_file(run_folder)
    wish.parent.mkdir(parents=True, exist_ok=True)
    wish.write_text("")
    try:
        if not wait_until(lambda: _is_taken(wish), take_seconds):
            return False
        if not wait_until(lambda: not wish.exists(), answer_seconds):
            raise NoCodeServer(f"No code server with the new code answers after {answer_seconds:.0f} s")
        return True
    finally:
        wish.unlink(missing_ok=True)


def _is_taken(wish: Path) -> bool:
    try:
        return wish.read_text() == TAKEN
    except FileNotFoundError:
        return True
