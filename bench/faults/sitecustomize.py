"""Put on PYTHONPATH it makes a stream host misbehave, without a line for it in the product.

While the file named by DEADLOCK_WHILE_THERE_IS exists, no batch of a host comes to its end.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import threading
from types import ModuleType


def _deadlock(module: ModuleType) -> None:
    real = module.append_once

    def stuck(*arguments: object) -> object:
        if os.path.exists(os.environ["DEADLOCK_WHILE_THERE_IS"]):
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return real(*arguments)

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
            _deadlock(module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


if "DEADLOCK_WHILE_THERE_IS" in os.environ:
    import importlib.util

    sys.meta_path.insert(0, _Finder())
