"""The build's hook: the browser files are there before the files of a package are gathered."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def load_assets(root: Path) -> ModuleType:
    """Return the module web.assets from the tree that is being built, which is not installed yet."""
    spec = importlib.util.spec_from_file_location("tidegate_assets", root / "web" / "assets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BrowserFiles(BuildHookInterface[Any]):
    """Fills static/vendor. In an editable install a failure is a warning: the pages work without these files."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling: a node, where files are missing and there is no npm."""
        root = Path(self.root)
        return list(load_assets(root).build_requirements(root))

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch the files that are missing or old."""
        root = Path(self.root)
        try:
            load_assets(root).ensure(root, log=self.app.display_info)
        except (Exception, SystemExit) as error:
            if version != "editable":
                raise
            self.app.display_warning(f"no browser files ({error}); to fetch them later: python -m web.assets")
