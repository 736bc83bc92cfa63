"""Are the numbers of all arrays those of gathered arrays? `python tests/long/array_numbers.py [--record]` (minutes):
five families of models under every built-in preset that fits, against NumPy in float64."""

import sys

import cpu_devices
import jax
from shardtui.engine.base.user_error import UserError
from shardtui.engine.spec.preset_files import PRESETS

from tests.oracle.arrays import FAMILIES, Whole

KINDS = "parameter", "moment", "gradient", "update", "activation"
COLUMNS = {"family": "", "presets": "{}", **{f"{kind}s": "{:.1e}" for kind in KINDS}}


def main() -> None:
    presets = sorted(path.stem for path in (PRESETS / "parallelism").glob("*.toml"))
    with cpu_devices.table("long/array_numbers", COLUMNS) as table:
        for family in FAMILIES:
            whole, found = Whole(family), dict[str, dict[str, float]]()
            for preset in presets:
                try:
                    found[preset] = whole.errors(whole.measured(preset)[0])
                except UserError as error:
                    print(f"{family}, {preset}: {error}", file=sys.stderr)
                jax.clear_caches()  # a process may map only so many programs
            table.add(family, len(found), *(max(each[kind] for each in found.values()) for kind in KINDS))


if __name__ == "__main__":
    main()
