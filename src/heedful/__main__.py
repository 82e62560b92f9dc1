"""`python -m heedful` and `heedful` are the command line."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends the program at once, without a traceback."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so where a shell has it ignored
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heedful.cli.app import main as run

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
