"""HTTP with access rules and limits, for the explorer and for `serve`."""
