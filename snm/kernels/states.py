"""States of models that score word by word: the last words of a hypothesis, as kernels take them.

A state is Python bytes in `step`, and a row of an array in `expand` and `follow`: word ids XOR the vocabulary's tag.
"""

from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

from snm.kernels.compile import helper, kernel_for


class StateBytes(types.Type):
    """Numba type of a state: Python bytes, passed to a kernel as their address."""

    def __init__(self):
        super().__init__("StateBytes")


register_model(StateBytes)(models.OpaqueModel)


@unbox(StateBytes)
def address_of_bytes(_, state, c):
    """The address of a bytes object; other objects raise TypeError."""
    address = c.pyapi.bytes_as_string(state)
    return NativeValue(address, is_error=cgutils.is_null(c.builder, address))


@intrinsic
def pointer(typing_context, address):
    """The pointer of an address or of a state."""

    def generate(context, builder, signature, arguments):
        if isinstance(address, StateBytes):
            return arguments[0]
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address if isinstance(address, StateBytes) else types.int64), generate


STATES, CHOSEN, SCORES = types.uint32[:, ::1], types.int64[::1], types.float64[:, ::1]
WORDS = types.uint32[::1], types.uint32[:, ::1]  # the same for all states, or a row for each
STEP = types.float64(types.int64, StateBytes(), types.int64)


@helper
def are_states(states, tag, vocabulary):
    """Whether all states have ids of the vocabulary; those of another one, with another tag, hardly ever have."""
    valid = True
    for c in range(len(states)):
        for j in range(states.shape[1]):
            valid &= states[c, j] ^ np.uint32(tag) < vocabulary
    return valid


@helper
def are_valid(words, states, tag, width, vocabulary):
    """Whether the states are valid, words are ids, and there is a row of words for each state or one for all."""
    for word in words.flat:
        if word >= vocabulary:
            return False
    fitting = words.size > 0 and states.shape[1] == width and (words.ndim == 1 or len(words) == len(states))
    return fitting and are_states(states, tag, vocabulary)


@cache
def follower():
    """`follow`, compiled when it is first needed."""

    @kernel_for([types.boolean(STATES, w, types.int64, types.int64, CHOSEN, STATES) for w in WORDS])
    def follow(states, given, tag, vocabulary, chosen, after):
        """after[k]: the state of hypothesis chosen[k] of `expand`; False if states, words or hypotheses are invalid."""
        m, width = given.shape[-1], after.shape[1]
        if not are_valid(given, states, tag, width, vocabulary):
            return False
        words, hypotheses = given.reshape((-1, m)), len(states) * m
        for k in range(len(chosen)):
            if not 0 <= chosen[k] < hypotheses:
                return False
            c, i = chosen[k] // m, chosen[k] % m
            for j in range(width - 1):
                after[k, j] = states[c, j + 1]
            after[k, width - 1] = words[min(c, len(words) - 1), i] ^ np.uint32(tag)
        return True

    return follow
