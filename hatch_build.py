"""Builds the explorer's page into the package, so that installing a wheel needs no Node."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface):
    """Runs npm where the page is not built yet and Node is there; says what is missing where it is not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / "src/heedful/explore/static/index.html").is_file():
            return
        npm = shutil.which("npm")
        if npm is None:
            self.app.display_warning(
                "npm was not found: the explorer's page is left out, and everything else works without it; install "
                "Node 20.19 or newer and build again to have it."
            )
            return
        for command in (["install", "--no-save", "--no-fund", "--no-audit"], ["run", "build"]):
            if subprocess.run([npm, *command], cwd=root / "web").returncode:
                self.app.display_warning("the explorer's page could not be built, and is left out; is Node 20.19 here?")
                return
