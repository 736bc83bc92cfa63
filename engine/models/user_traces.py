"""Traces of a user's model, to find what jax refuses before anything is compiled, and to count its FLOPs."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ..base.user_error import UserError
from .flops import Jaxpr, flops


class Traces:
    """Traces of a user's forward and backward pass, one per set of mesh axes, made on first use."""

    def __init__(
        self,
        outcome: Callable[..., tuple[jax.Array, Any]],
        arguments: Callable[[], tuple[Any, ...]],
        errors_as_invalid: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """`outcome` returns the minimised value and auxiliary outputs of abstract `arguments`."""
        self._outcome, self._arguments, self._errors_as_invalid = outcome, arguments, errors_as_invalid
        self._known: dict[tuple[str, ...], Jaxpr | UserError] = {}

    def problems_on(self, axes: tuple[str, ...]) -> list[str]:
        """Returns why the step cannot be traced on a mesh with these axes, of any size. A step that can be traced
        without a mesh can be traced on any; others may constrain activations to mesh axes."""
        without_mesh = self._traced(())
        if not isinstance(without_mesh, UserError):
            return []
        on_mesh = self._traced(axes)
        if not isinstance(on_mesh, UserError):
            return []
        if without_mesh.problems == on_mesh.problems:  # the mesh is not the cause
            return list(on_mesh.problems)
        mesh = " × ".join(axes)
        hint = "choose a preset whose mesh has the axes that the model names"
        return [f"on a mesh of {mesh}: {text}: {hint}" for text in on_mesh.problems]

    @property
    def flops(self) -> float:
        """FLOPs: 3 × the forward pass, as each product has two in the backward pass; 0 if the step cannot be traced."""
        known = [traced for traced in (self._traced(()), *self._known.values()) if not isinstance(traced, UserError)]
        return 3 * flops(known[0]) if known else 0.0

    def _traced(self, axes: tuple[str, ...]) -> Jaxpr | UserError:
        if axes not in self._known:
            try:
                self._known[axes] = self._trace(axes)
            except UserError as problem:
                self._known[axes] = problem
        return self._known[axes]

    def _trace(self, axes: tuple[str, ...]) -> Jaxpr:
        shape = (1,) * len(axes)
        mesh = Mesh(np.array(jax.local_devices()[:1]).reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))
        arguments = self._arguments()
        with self._errors_as_invalid(), jax.set_mesh(mesh) if axes else contextlib.nullcontext():
            jax.eval_shape(jax.grad(self._outcome, has_aux=True), *arguments)
            return jax.make_jaxpr(self._outcome)(*arguments)
