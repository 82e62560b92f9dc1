"""What the verbs of the command line do; each module is imported by its verb alone."""
