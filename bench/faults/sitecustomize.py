"""Put on PYTHONPATH it makes a stream host misbehave, without a line for it in the product.

While there is a file `deadlock` in the folder named by HANGS, a batch of a host waits for itself, and while there is a
file `task`, for a task of Spark that never ends.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "HANGS"


def _hang(module: ModuleType) -> None:
    real = module.append_once

    def stuck(rows: Any, *arguments: object) -> object:
        hangs = Path(os.environ[FOLDER])
        if (hangs / "task").exists():
            rows.sparkSession.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 86400000L)").collect()
        if (hangs / "deadlock").exists():
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return real(rows, *arguments)

    module.append_once = stuck  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "lake.commit":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            _hang(module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


if FOLDER in os.environ:
    import importlib.util

    sys.meta_path.insert(0, _Finder())
