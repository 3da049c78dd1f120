"""Define the type of values that may be used freely, and the few honest ways to make one.

    released       from records, by a mechanism that was paid for    execution.py, beside this file
    received       a site's reply: its word that it was released     fedpriv_strategies.messages
                   the server's values, of no record here            private_training/local_steps.py
    aggregated     a sum of shares that was completed                fedpriv_strategies.sum_of_set
    restored       such values, read back from a file                fedpriv_server.checkpoint
    public         from public data and public seeds alone           where a job begins
    post_process   from such values and nothing else                 anywhere

Whatever steers training (optimiser, aggregation, evaluation) accepts nothing else: mypy refuses
a raw value, and `require_privatised` refuses it again when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Generic, Never, TypeVar

from fedpriv.errors import RawValueError

T = TypeVar("T")
R = TypeVar("R")


class TrustModel(Flag):
    """Whose word a privacy claim rests on; if several, on the word of all."""

    PUBLIC = 0  # nobody's: no private record had a part in it
    LOCAL = auto()  # the site's own: it added its noise itself, here
    RECEIVED = auto()  # that of the sender, that each site in it added its noise itself
    RESTORED = auto()  # that of anybody who can write the file it was read from
    AGGREGATE = auto()  # that of the sum of a set of sites of which at most t collude


@dataclass(frozen=True, init=False, eq=False)
class Privatised(Generic[T]):
    """A value that is differentially private on its own, whoever reads it; or public.

    Attributes:
        value: the value itself. What is computed from it is privatised too, with `post_process`.
        trust_model: the parties that the claim trusts.

    Raises:
        RawValueError: always; the functions of this module make one.
    """

    value: T
    trust_model: TrustModel

    def __init__(self, *values: Never, **named: Never) -> None:
        raise RawValueError("A Privatised value is made by a mechanism, not by hand.")


def _make(value: T, trust_model: TrustModel) -> Privatised[T]:
    made: Privatised[T] = object.__new__(Privatised)
    object.__setattr__(made, "value", value)
    object.__setattr__(made, "trust_model", trust_model)
    return made


def released(value: T) -> Privatised[T]:
    """Wrap the output of a mechanism. For mechanisms alone: they must see to the payment."""
    return _make(value, TrustModel.LOCAL)


def received(value: T) -> Privatised[T]:
    """Wrap what another party's message carries. For the code that takes it in alone."""
    return _make(value, TrustModel.RECEIVED)


def aggregated(value: T) -> Privatised[T]:
    """Wrap the sum of a set of sites, each of which added a share of the noise and hid its part.

    For the code that completes such sums alone. What one site sent is not privatised, and neither
    is a sum that lacks a site's part.
    """
    return _make(value, TrustModel.AGGREGATE)


def restored(value: T) -> Privatised[T]:
    """Wrap what was privatised when it was written. For the code that reads checkpoints alone."""
    return _make(value, TrustModel.RESTORED)


def public(value: T) -> Privatised[T]:
    """Wrap what was made from public data and public seeds alone, such as a first adapter."""
    return _make(value, TrustModel.PUBLIC)


def post_process(
    compute: Callable[..., R], first: Privatised[Any], *others: Privatised[Any]
) -> Privatised[R]:
    """Apply `compute` to the values; it must read nothing private besides them.

    The result rests on the word of everyone on whose word one of the values rests.

    Raises:
        RawValueError: one of the values is raw.

    Source:
        Dwork & Roth 2014, proposition 2.1: post-processing costs nothing.
    """
    inputs = [require_privatised(item, "every value of post_process") for item in (first, *others)]
    trust_model = first.trust_model
    for item in others:
        trust_model |= item.trust_model
    return _make(compute(*inputs), trust_model)


def require_privatised(argument: Privatised[T], name: str) -> T:
    """Return the value in `argument`, after a check that it is a privatised one.

    Args:
        name: the argument's name, for the message.

    Raises:
        RawValueError: it is raw. The error shows its type, never its value.
    """
    if not isinstance(argument, Privatised):
        raise RawValueError(
            f"Expected {name} to be Privatised, got a raw {type(argument).__name__}. Pass what a"
            " mechanism released or what post_process made of it; what is public, pass as"
            " public(…)."
        )
    return argument.value
