"""What to explain."""

from msgspec import Struct

from ..spec.config import RunConfig, UserModel


class Program(Struct, frozen=True, kw_only=True):
    """A program of the user's: a function that lowers it."""

    function: UserModel
    """The function and its file."""
    mesh: dict[str, int]
    """Axis to size of the mesh that is set while the function is called; empty for none."""
    compiles: bool = False
    """Whether the program is compiled, too."""


class Step(Struct, frozen=True, kw_only=True):
    """The train step of a preset."""

    config: RunConfig
    """Model, devices and preset."""
    rules: dict[str, list[str]] = {}
    """Rules to try: logical axis to mesh axes, in place of those of the preset; empty for an unsplit axis."""
    compiles: bool = False
    """Whether the step is compiled, too."""
    is_simulated: bool = False
    """Whether simulated devices take the place of the platform's, which another process may hold."""


class KeptFile(Struct, frozen=True, kw_only=True):
    """The step of an external loop."""

    path: str
    """The file in which `watch` kept it."""
