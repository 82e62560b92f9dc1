"""`python -m heedful` is the command line."""

from heedful.cli import main

if __name__ == "__main__":
    main()
