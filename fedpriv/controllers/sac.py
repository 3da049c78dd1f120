"""A controller that learns: soft actor-critic over clip norms, weights and the pace of spending.

*State*, of released and public values only: of each group the size of its gradient, how far that
stands out of the noise, and the size of its update; the share spent, the share of rounds, the loss
and its change; the last decision.

*Decision*: of each group a factor to the clip norm with which it began (1/`CLIP_RANGE` to
`CLIP_RANGE`), and one (of `WEIGHT_RANGE`) to the weight that makes least noise in all for these
clip norms; in an adaptive job a pace, which multiplies an even share of what is left of the budget
(by 1/`PACE_RANGE` to `PACE_RANGE`).

*Reward*: how far the loss on public or synthetic records fell, for an even round's share of ε.
Where a job has no such loss, instead: which share of the released gradient's squared norm is
signal, Σ(‖g_k‖² − size_k · deviation_k²) / Σ‖g_k‖². Of a smooth loss, a step at the best rate along
a gradient with noise makes it fall by so much of what it would fall by without noise. It has the
same units in all rounds and no bias in favour of noise, for what is negative counts as negative.

*Budget*, in an adaptive job: a decision is a share of it, and sites add as little noise as that
buys them. Each round leaves as much as every later one needs at the slowest pace, and the last
takes what is left; so the budget is used up and not overrun.

All it draws follows from the job's seed and how often it has decided, so it needs no generator
whose state would have to be kept.

Privacy:
    Post-processing. RLDP as published looks at norms that no mechanism released, and accounts for
    the noise of many groups as if there were one. Here nothing raw is seen, all groups together
    stay within one clip norm, and where noise is chosen by what was released, a filter pays
    (laws 6 to 8). All of it is enforced by the sites, too.

Source:
    Khadangi et al. 2025, "Efficient Differentially Private Fine-Tuning of LLMs via Reinforcement
    Learning" (RLDP).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import (
    Array,
    Controller,
    Round,
    Setting,
    State,
    check_state,
    decision_of,
    least_noise,
    start_clip_norms,
)
from fedpriv.controllers.config import SacSection
from fedpriv.controllers.sac_networks import Batch, Learner
from fedpriv.errors import ConfigError, RunError

MAX_GROUPS = 1000  # the memory is as wide as eleven times that
CLIP_RANGE = WEIGHT_RANGE = 4.0
PACE_RANGE = 2.0
BATCH = 64  # remembered decisions in a training step
LARGEST_REWARD = 5.0  # in root mean squares of all that are remembered
LARGEST_FEATURE = 5.0
NETWORK = "network."  # before the names of what the learner keeps


class SacController(Controller):
    """Decides what has paid off before.

    Raises:
        ConfigError: too many groups.
    """

    def __init__(self, settings: SacSection, setting: Setting) -> None:
        super().__init__(setting)
        if setting.count > MAX_GROUPS:
            raise ConfigError(
                f"sac can learn for at most {MAX_GROUPS} groups, and there are {setting.count}",
                key="controller.groups",
                fix="Use larger groups, or another controller.",
            )
        self._settings = settings
        self._start = start_clip_norms(setting)
        actions = 2 * setting.count + (setting.filter is not None)
        states = 3 * setting.count + 4 + actions
        self._learner = Learner(states, actions, settings.encoder, self._generator(0))
        self._decided = 0
        self._memory = [np.zeros((0, width), np.float32) for width in (states, actions, 1, states)]
        self._features = np.zeros(states)  # those of the last decision
        self._action = np.zeros(actions)
        self._loss = math.nan  # the last one there was
        self._used = 0.0  # of the budget
        self._pending = np.zeros(3)  # since the decision: rounds, of these with a gain, all gains
        self._choose()

    def decide(self, number: int) -> Decision:
        """Return what the last decision comes to in a round."""
        count = self.setting.count
        clip_norms = self._start * CLIP_RANGE ** self._action[:count]
        factors = WEIGHT_RANGE ** self._action[count : 2 * count]
        weights = least_noise(clip_norms, self.setting) * factors
        return decision_of(clip_norms, weights, self._share(number))

    def _share(self, number: int) -> float | None:
        """Return a round's share of the budget: it keeps the pace and leaves enough for others."""
        if self.setting.filter is None:
            return None
        rounds, span = self.setting.rounds, PACE_RANGE
        left = max(rounds - number + 1, 1)
        remaining = max(1 - 1e-9 - self._used, 0.0)
        if left == 1:
            return remaining
        least = min(1 / rounds / span, remaining / left)
        even = remaining / left * float(span ** self._action[-1])
        return min(max(even, least), remaining - (left - 1) * least)

    def _learn(self, seen: Round) -> None:
        gain = self._gain(seen)
        share = seen.decision.share
        if self.setting.filter is not None and share is not None:
            self._used = max(self._used + share, seen.spent)
            if gain is not None:
                gain /= max(share * self.setting.rounds, 1e-6)
        self._pending += (1, gain is not None, gain or 0.0)
        if self._pending[0] < self._settings.interval:
            return
        features = self._seen_as(seen)
        if self._pending[1]:
            reward = self._pending[2] / self._pending[1]
            self._remember(self._features, self._action, reward, features)
        self._features = features
        self._decided += 1
        self._pending = np.zeros(3)
        self._improve()
        self._choose()

    def _gain(self, seen: Round) -> float | None:
        """Return what a round was good for; None where nobody knows."""
        if seen.loss is None:
            if not math.isnan(self._loss):
                return None  # a loss comes in some rounds only
            total = float((seen.squared + self._noise_in(seen)).sum())
            return float(np.clip(seen.squared.sum() / total, -1, 1)) if total > 0 else 0.0
        before, self._loss = self._loss, seen.loss
        if math.isnan(before):  # what was remembered so far was rewarded for something else
            self._memory = [part[:0] for part in self._memory]
            return None
        return before - seen.loss

    def _noise_in(self, seen: Round) -> Array:
        """Return the expected squared norm of the noise in each group, (K,)."""
        return np.asarray(np.asarray(self.setting.sizes, np.float64) * seen.deviation**2)

    def _seen_as(self, seen: Round) -> Array:
        """Return what the networks see of a round, each value within bounds, (S,)."""
        noise = self._noise_in(seen)
        tiny = 1e-30
        size = np.log10(np.maximum(seen.squared + noise, tiny) / self._start**2) / 4
        error = noise * np.sqrt(2 / np.asarray(self.setting.sizes))
        signal = np.arcsinh(seen.squared / np.maximum(error, tiny)) / 4
        moved = np.log10(np.maximum(seen.moved, tiny)) / 4
        loss = 0.0 if seen.loss is None else seen.loss
        change = self._pending[2] if seen.loss is not None else 0.0
        common = [seen.spent, seen.number / self.setting.rounds, math.asinh(loss)]
        common.append(math.asinh(100 * change))
        values = np.concatenate((size, signal, moved, common, self._action))
        return np.asarray(np.clip(np.nan_to_num(values), -LARGEST_FEATURE, LARGEST_FEATURE))

    def _remember(self, state: Array, action: Array, reward: float, after: Array) -> None:
        row = (state, action, np.array([reward]), after)
        self._memory = [
            np.concatenate((part, value[None].astype(np.float32)))[-self._settings.replay :]
            for part, value in zip(self._memory, row, strict=True)
        ]

    def _improve(self) -> None:
        """Learn from what is remembered, rewards in root mean squares of all of them."""
        count = len(self._memory[0])
        if count < 2:
            return
        states, actions, rewards, after = map(torch.from_numpy, self._memory)
        scale = rewards.double().square().mean().sqrt().clamp(min=1e-12)
        shown = (rewards[:, 0] / scale).float().clamp(-LARGEST_REWARD, LARGEST_REWARD)
        generator = self._generator(2 * self._decided)
        for _ in range(self._settings.updates):
            rows = torch.randint(count, (BATCH,), generator=generator)
            batch = Batch(states[rows], actions[rows], shown[rows], after[rows])
            self._learner.learn(batch, generator)

    def _choose(self) -> None:
        """Choose the decision of the coming rounds: first at random, then what was learned."""
        generator = self._generator(2 * self._decided + 1)
        if self._decided < self._settings.warm_up:
            drawn = torch.rand(len(self._action), generator=generator, dtype=torch.float64)
            self._action = (2 * drawn - 1).numpy()
        else:
            self._action = self._learner.act(self._features, generator)

    def _generator(self, purpose: int) -> torch.Generator:
        words = np.random.SeedSequence((self.setting.seed, purpose)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(words[0]) % 2**63)

    def _arrays(self) -> State:
        return {
            **dict(zip(_MEMORY, (part.copy() for part in self._memory), strict=True)),
            "features": self._features.copy(),
            "action": self._action.copy(),
            "pending": self._pending.copy(),
            "numbers": np.array([self._decided, self._loss, self._used]),
            **{NETWORK + name: value for name, value in self._learner.arrays().items()},
        }

    def _put(self, state: State) -> None:
        own = {name: value for name, value in state.items() if not name.startswith(NETWORK)}
        rows = len(own.get("memory.states", ()))
        check_state(
            {**own, "numbers": np.nan_to_num(own["numbers"])} if "numbers" in own else own,
            {
                **{n: (rows, p.shape[1]) for n, p in zip(_MEMORY, self._memory, strict=True)},
                "features": self._features.shape,
                "action": self._action.shape,
                "pending": (3,),
                "numbers": (3,),
            },
        )
        decided, loss, used = (float(value) for value in own["numbers"])
        if not (decided >= 0 and used >= 0):
            raise RunError("The state of a controller has numbers that it can't have written.")
        self._learner.put({n[len(NETWORK) :]: v for n, v in state.items() if n.startswith(NETWORK)})
        self._memory = [np.array(own[name], np.float32) for name in _MEMORY]
        self._features = np.array(own["features"], np.float64)
        self._action = np.array(own["action"], np.float64)
        self._pending = np.array(own["pending"], np.float64)
        self._decided, self._loss, self._used = int(decided), loss, used


_MEMORY = ("memory.states", "memory.actions", "memory.rewards", "memory.after")
