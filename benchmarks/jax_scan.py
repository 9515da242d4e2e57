"""How fast is the same MI-LSTM in JAX? ``lax.scan`` over the steps, the input product before it, loss and gradients in one jit.

The baseline of a few lines of gpu.py, which skips them where JAX is not installed.
"""

import os
from types import SimpleNamespace

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes three quarters of the GPU's memory

import common
import jax
import numpy as np
import torch
from jax import numpy as jnp

import multint
from multint.cells import LSTM, State

MATHS = SimpleNamespace(sigmoid=jax.nn.sigmoid, tanh=jnp.tanh, settle=lambda c: c, project=lambda h: h)
NAMES = ("weight_ih_l0", "weight_hh_l0", "alpha_l0", "beta1_l0", "beta2_l0", "bias_l0", "input")
SAME = 5e-2  # relative difference allowed between JAX's gradients and ours, both in bfloat16 over all steps


def loss(leaves, g):
    """Of the outputs, with ``g`` as their gradient."""
    w, u, alpha, beta1, beta2, b, x = (leaves[name] for name in NAMES)

    def step(state, wx):
        a = multint.integrate(wx, state.h @ u.T, alpha, beta1, beta2, b)
        gates = dict(zip(LSTM.gates, jnp.split(a, len(LSTM.gates), axis=-1), strict=True))
        state = LSTM.step(lambda gate, source: gates[gate], state, MATHS)
        return state, state.h

    zero = jnp.zeros((x.shape[1], u.shape[1]), x.dtype)
    _, output = jax.lax.scan(step, State(zero, zero), x @ w.T)
    return (output * g).sum(dtype=jnp.float32)


def to_jax(tensor):
    return jnp.asarray(tensor.detach().float().cpu().numpy(), jnp.bfloat16)


def to_torch(array):
    return torch.from_numpy(np.array(array, np.float32))


class Scan:
    """A training step of a one-layer MILSTM, with the weights, input and gradient of ``side``; it is checked against that side."""

    def __init__(self, side):
        self.leaves, self.g = {name: to_jax(side.leaves[name]) for name in NAMES}, to_jax(side.g)
        self.call = jax.jit(jax.value_and_grad(loss))
        ours = {name: grad.cpu() for name, grad in zip(side.leaves, side.step(), strict=True)}
        error, name = common.furthest({name: to_torch(grad) for name, grad in self.step().items()}, ours)
        if not error <= SAME:
            raise RuntimeError(f"JAX's gradient of {name} is off by {error:.1e} from ours, more than {SAME:.0e}")

    def step(self):
        return jax.block_until_ready(self.call(self.leaves, self.g))[1]
