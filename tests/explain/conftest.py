from collections.abc import Iterator

import jax
import pytest
from jax.sharding import AxisType


@pytest.fixture
def mesh() -> Iterator[None]:
    """Sets a mesh of data 4 × model 2."""
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        yield
