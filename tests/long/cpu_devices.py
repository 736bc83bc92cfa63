"""To be imported before jax: eight simulated devices, and compilers for TPUs that nobody has to hold."""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.suite import versions
from tests.table import Table, arguments


def table(name: str, columns: dict[str, str]) -> Table:
    """Reads the command line, which has no other option than `--record`, and prints what is installed."""
    options = arguments(argparse.ArgumentParser(description=sys.modules["__main__"].__doc__))
    print(f"{versions()}\n")
    return Table(name, columns, options.record)
