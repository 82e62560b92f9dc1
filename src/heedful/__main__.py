"""`python -m heedful` and `heedful` are the command line."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C during its imports ends the program without a traceback."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # False if the shell ignores SIGINT
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heedful.cli.app import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
