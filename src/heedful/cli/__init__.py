"""The command line; the modules of commands that compute are imported only when they run."""
