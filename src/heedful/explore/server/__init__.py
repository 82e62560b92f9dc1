"""The explorer's server."""
