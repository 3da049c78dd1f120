"""Soft actor-critic on small dense networks: what is learned, and how it is kept.

Actions are values in (−1, 1): tanh of a normal distribution whose mean and deviation a network
gives. Two critics estimate what an action is worth, slow copies of them what comes after; the
lower estimate of the two counts. How random actions are is regulated towards a target entropy.

All randomness is drawn from a generator that the caller hands over.

Source:
    Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedpriv.controllers.base import Array, State
from fedpriv.errors import RunError

RATE = 3e-4  # of learning
DISCOUNT = 0.99  # of what comes after
FOLLOWING = 0.005  # how fast the slow copies follow the critics
ENTROPY = -1.0  # of each value, in nats, that is aimed at
LOWEST, HIGHEST = -5.0, 1.0  # logarithms of the deviation before tanh
LONGEST = 1.0  # gradient of a step
CRITICS = ("first", "second")
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Batch(NamedTuple):
    """Remembered decisions (N): float32 states (N, S), actions (N, A), rewards (N,), (N, S)."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    after: Tensor


class Learner:
    """Actor, critics, temperature and their optimisers.

    Args:
        states, actions: S and A, how many values there are in each.
        width: of the networks' layers.
        generator: draws the first weights.
    """

    def __init__(self, states: int, actions: int, width: int, generator: torch.Generator) -> None:
        self._target = ENTROPY * actions
        self.networks = nn.ModuleDict({"actor": _dense(states, width, 2 * actions, generator)})
        for name in CRITICS:
            critic = _dense(states + actions, width, 1, generator)
            self.networks[name] = critic
            self.networks[f"slow_{name}"] = _dense(states + actions, width, 1, generator)
            self.networks[f"slow_{name}"].load_state_dict(critic.state_dict())
        self.temperature = nn.Parameter(torch.tensor(math.log(0.1)))  # its logarithm
        self._parts: dict[str, list[nn.Parameter]] = {
            "actor": [*self.networks["actor"].parameters()],
            "critics": [p for name in CRITICS for p in self.networks[name].parameters()],
            "temperature": [self.temperature],
        }
        self._optimizers = {
            name: torch.optim.Adam(parameters, lr=RATE, foreach=False)
            for name, parameters in self._parts.items()
        }
        for optimizer in self._optimizers.values():
            for parameter in optimizer.param_groups[0]["params"]:  # what a first step would make
                optimizer.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    @torch.no_grad()
    def act(self, state: Array, generator: torch.Generator) -> Array:
        """Return an action (A,) for a state (S,); 0 for what is no number."""
        action, _ = self._drawn(torch.from_numpy(state).float()[None], generator)
        return np.asarray(np.nan_to_num(action[0].double().numpy(), nan=0.0))

    def learn(self, batch: Batch, generator: torch.Generator) -> None:
        """Take one step of critics, actor and temperature."""
        worth = self._targets(batch, generator)
        found = (self._value(name, batch.states, batch.actions) for name in CRITICS)
        self._step("critics", sum(((value - worth) ** 2).mean() for value in found))
        actions, log_chance = self._drawn(batch.states, generator)
        value = self._lower(batch.states, actions, "")
        self._step("actor", (self.temperature.detach().exp() * log_chance - value).mean())
        surprise = (log_chance.detach() + self._target).mean()
        self._step("temperature", -self.temperature * surprise)
        with torch.no_grad():
            for name in CRITICS:
                slow, quick = self.networks[f"slow_{name}"], self.networks[name]
                for one, other in zip(slow.parameters(), quick.parameters(), strict=True):
                    one.lerp_(other, FOLLOWING)

    @torch.no_grad()
    def _targets(self, batch: Batch, generator: torch.Generator) -> Tensor:
        actions, log_chance = self._drawn(batch.after, generator)
        later = self._lower(batch.after, actions, "slow_") - self.temperature.exp() * log_chance
        return batch.rewards + DISCOUNT * later

    def _drawn(self, states: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw actions (N, A) and the logarithms of their densities (N,)."""
        mean, spread = self.networks["actor"](states).chunk(2, dim=-1)
        log_deviation = LOWEST + (HIGHEST - LOWEST) * (torch.tanh(spread) + 1) / 2
        drawn = torch.randn(mean.shape, generator=generator)
        before = mean + log_deviation.exp() * drawn
        density = -(drawn**2) / 2 - log_deviation - HALF_LOG_TAU
        squeezed = 2 * (math.log(2) - before - F.softplus(-2 * before))  # log(1 − tanh²)
        return torch.tanh(before), (density - squeezed).sum(-1)

    def _value(self, name: str, states: Tensor, actions: Tensor) -> Tensor:
        found: Tensor = self.networks[name](torch.cat((states, actions), -1))[:, 0]
        return found

    def _lower(self, states: Tensor, actions: Tensor, copy: str) -> Tensor:
        first, second = (self._value(f"{copy}{name}", states, actions) for name in CRITICS)
        return torch.minimum(first, second)

    def _step(self, part: str, loss: Tensor | float) -> None:
        parameters, optimizer = self._parts[part], self._optimizers[part]
        gradients = torch.autograd.grad(torch.as_tensor(loss), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, LONGEST, foreach=False)
        optimizer.step()
        optimizer.zero_grad()

    def arrays(self) -> State:
        """Return everything that is learned, copied."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self._tensors()}

    def put(self, state: State) -> None:
        """Go on from what `arrays` returned.

        Raises:
            RunError: it is of other networks; nothing was changed.
        """
        expected = {name: tuple(tensor.shape) for name, tensor in self._tensors()}
        if {name: np.shape(value) for name, value in state.items()} != expected:
            raise RunError("The state of a controller is of other networks or other groups.")
        with torch.no_grad():
            for name, tensor in self._tensors():
                tensor.copy_(torch.from_numpy(np.array(state[name])))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.networks.state_dict().items()
        yield "temperature", self.temperature
        for part, optimizer in self._optimizers.items():
            for index, parameter in enumerate(self._parts[part]):
                for key, value in optimizer.state[parameter].items():
                    yield f"{part}.optimizer.{index}.{key}", value


def _dense(values: int, width: int, results: int, generator: torch.Generator) -> nn.Sequential:
    """Make an encoder of two layers, and what reads it."""
    sizes = ((values, width), (width, width), (width, results))
    # Made without storage first, so that nothing is drawn from the process's own generator.
    layers = [nn.Linear(*size, device="meta").to_empty(device="cpu") for size in sizes]
    with torch.no_grad():
        for layer in layers:
            bound = 1 / math.sqrt(layer.in_features)
            for parameter in layer.parameters():
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(bound * (2 * drawn - 1))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
