"""Python runs this before a program that is watched; the environment's own `sitecustomize` follows."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

from shardtui.engine.watching.start import start  # pyright: ignore[reportMissingImports] # Python finds this file alone

start()
if (spec := PathFinder.find_spec("sitecustomize")) and spec.loader:
    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
