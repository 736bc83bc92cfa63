"""`shardtui tour`: the UI on a new run, with lessons."""

import argparse

from ...engine.spec.config import RunConfig
from ...engine.spec.model_choice import choose_model
from ...engine.wire import run_directory
from .run import client_of, require_terminal, show, user_keymap

SETTINGS = ("seq_len=32",)
"""Steps that take a fraction of a second on two cores."""


def tour_options(_: argparse.ArgumentParser) -> None:
    """`tour` has no options."""


def tour_command(_: argparse.Namespace) -> int:
    """Starts a run on simulated devices, also where there are others, and shows the lessons. Raises Invalid."""
    from ..state.tour import Tour

    require_terminal("shardtui train --steps N")
    keymap = user_keymap()
    run_directory.runtime_directory()  # an unusable one is refused before anything is created
    model = choose_model("nano", SETTINGS)
    config = RunConfig(
        run=run_directory.free_name("tour"),
        model_name=model.name,
        model=model.model,
        training=model.training,
        preset="dp",
        devices=8,
        platform="cpu",
    )
    return show(client_of(run_directory.create(config)), keymap, starts=True, tour=Tour())
