"""Many processes as one run."""
