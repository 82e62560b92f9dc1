"""Linformer (Wang et al., 2020)."""
