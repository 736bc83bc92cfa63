"""A step of the user's functions as jax traces it: what is wrong with it, on which meshes, and what it computes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ..base.invalid import Invalid
from .flops import Jaxpr, flops


class Traces:
    """Each is made when it is first asked for, on shapes alone."""

    def __init__(
        self,
        outcome: Callable[..., tuple[jax.Array, Any]],
        arguments: Callable[[], tuple[Any, ...]],
        told: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`outcome`: what is minimised and what is beside it, of `arguments`, which are abstract. Under `told` what is
        raised comes out as Invalid."""
        self._outcome, self._arguments, self._told = outcome, arguments, told
        self._known: dict[tuple[str, ...], Jaxpr | Invalid] = {}
        """By the axes of a mesh; without any there is no mesh."""

    def problems_on(self, axes: tuple[str, ...]) -> list[str]:
        """Why there is no step on a mesh with these axes, whatever their sizes. What goes without a mesh goes on any:
        else activations are constrained to axes, and the mesh has to have them."""
        anywhere = self._traced(())
        if not isinstance(anywhere, Invalid):
            return []
        here = self._traced(axes)
        if not isinstance(here, Invalid):
            return []
        if anywhere.problems == here.problems:  # it is not the mesh
            return list(here.problems)
        mesh = " × ".join(axes)
        return [f"on a mesh of {mesh}: {text}: choose one with the axes that are named" for text in here.problems]

    @property
    def flops(self) -> float:
        """Of forward and backward pass: three times those of the forward pass, as the backward pass has two products
        for each of its own. 0 where nothing could be traced."""
        known = [traced for traced in (self._traced(()), *self._known.values()) if not isinstance(traced, Invalid)]
        return 3 * flops(known[0]) if known else 0.0

    def _traced(self, axes: tuple[str, ...]) -> Jaxpr | Invalid:
        if axes not in self._known:
            try:
                self._known[axes] = self._trace(axes)
            except Invalid as problem:
                self._known[axes] = problem
        return self._known[axes]

    def _trace(self, axes: tuple[str, ...]) -> Jaxpr:
        shape = (1,) * len(axes)
        mesh = Mesh(np.array(jax.local_devices()[:1]).reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))
        arguments = self._arguments()
        with self._told(), jax.set_mesh(mesh) if axes else nullcontext():
            jax.eval_shape(jax.grad(self._outcome, has_aux=True), *arguments)
            return jax.make_jaxpr(self._outcome)(*arguments)
