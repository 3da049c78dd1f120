"""Whatever a controller decides, one unit moves the sum by at most C, and no other unit with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config.groups import Decision, Grouping, GroupTerms
from fedpriv.data.encode import Example
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP
from fedpriv.private_training.worker import Worker

CLIP, TARGETS = 0.4, ("q_proj", "v_proj")
COUNTS: dict[Grouping, int] = {"model": 1, "layers": 2, "adapters": 4, "matrices": 8}
Unit = tuple[Example, ...]


def units(sizes: list[int]) -> list[Unit]:
    """Units of so many records, of lengths from 3 to 60."""
    generator = np.random.default_rng(3)
    made = []
    for unit, size in enumerate(sizes):
        lengths = [3 + (17 * unit + 29 * number) % 58 for number in range(size)]
        ids = [generator.integers(3, 250, size=length).tolist() for length in lengths]
        made.append(tuple(Example(one, [-100, *one[1:]]) for one in ids))
    return made


def decided(count: int, kind: str) -> Decision:
    """Clip norms as far apart as they may be, or the same for all; and weights to go with them."""
    places = np.arange(count)
    extreme = np.where(places % 2, MAX_CLIP, MIN_CLIP)
    norms = {
        "even": np.full(count, CLIP),
        "side by side": extreme,
        "all tiny": np.full(count, MIN_CLIP),
        "all huge": np.full(count, MAX_CLIP),
        "lopsided": extreme[::-1],
    }[kind]
    weights = np.where(places, 1e-9, 1.0) if kind == "lopsided" else np.ones(count)
    return Decision(
        clip_norms=tuple(norms.tolist()), weights=tuple((weights / weights.sum()).tolist())
    )


class Steered:
    """The real method on a tiny model, with a controller's terms.

    Attributes:
        size: of a release.
    """

    def __init__(self, worker: Any, by: Grouping, numerics: Any, **terms: Any) -> None:
        self.worker, self.numerics = worker, numerics
        self.terms = GroupTerms(by=by, count=COUNTS[by], **terms)
        noise = np.random.default_rng(5).normal(size=worker.vector.size) / 10
        self.parameters = worker.initial + noise.astype(np.float32)
        self.size = worker.vector.size + (COUNTS[by] if self.terms.bits else 0)

    def sum(self, members: list[Unit], decision: Decision) -> torch.Tensor:
        method = DpLora(self.terms).in_groups(decision)
        assert method.prepare(self.worker, self.parameters) == self.size
        found = method.clipped_sum(self.worker, members, self.parameters, CLIP, self.numerics)
        assert (found.sensitivity, len(found.value)) == (CLIP, self.size)
        return found.value if found.grid is None else found.value * found.grid.step


@pytest.fixture
def steered(make_worker: Callable[..., Any]) -> Callable[..., Steered]:
    def make(by: Grouping, numerics: Any = "default", **terms: Any) -> Steered:
        worker = make_worker("llama", targets=TARGETS, dtype="float32")
        return Steered(worker, by, numerics, **terms)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize(
    ("by", "terms"),
    [
        pytest.param("adapters", {}, marks=pytest.mark.slow),
        pytest.param("matrices", {"bits": 0.3}, marks=pytest.mark.slow),
        ("layers", {"bits": 0.05}),
        ("model", {"bits": 0.5}),
    ],
)
def test_one_unit_moves_the_sum_by_at_most_the_bound_whatever_is_decided(
    steered: Callable[..., Steered], numerics: str, by: Grouping, terms: dict[str, Any]
) -> None:
    found, members = steered(by, numerics, **terms), units([2, 1, 3, 1])
    for kind in ("even", "side by side", "all tiny", "all huge", "lopsided"):
        decision = decided(COUNTS[by], kind)
        whole = found.sum(members, decision)
        moves = []
        for left_out in range(len(members)):
            rest = members[:left_out] + members[left_out + 1 :]
            moves.append(float((whole - found.sum(rest, decision)).norm()))
        assert max(moves) <= CLIP
        if kind == "all tiny":
            assert min(moves) > 0.99 * CLIP * (1 if not found.terms.bits else 0.9)


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_unit_adds_the_same_whatever_else_is_sampled_and_decided(
    steered: Callable[..., Steered], numerics: str
) -> None:
    """In strict numerics to the last bit, else but for the order in which float64 sums are made."""
    found = steered("matrices", numerics, bits=0.2)
    members = units([1, 3, 1, 2, 1])
    off = 0.0 if numerics == "strict" else 1e-12
    for kind in ("side by side", "lopsided"):
        decision = decided(COUNTS["matrices"], kind)
        alone = torch.stack([found.sum([unit], decision) for unit in members])
        assert alone.norm(dim=1).min() > 0.1 * CLIP
        for chosen in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 1]):
            total = found.sum([members[place] for place in chosen], decision)
            assert float((total - alone[chosen].sum(0)).abs().max()) <= off


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_unit_that_is_not_finite_adds_nothing_not_even_its_bits(
    steered: Callable[..., Steered], monkeypatch: pytest.MonkeyPatch, numerics: str
) -> None:
    found, members = steered("adapters", numerics, bits=0.2), units([1, 1, 1])
    decision, plain = decided(4, "even"), Worker.record_gradients
    others = found.sum([members[0], members[2]], decision)
    poison = members[1][0].input_ids[:3]

    def spoilt(worker: Any, batch: Any) -> torch.Tensor:
        rows = plain(worker, batch)
        rows[(batch.input_ids[:, :3] == torch.tensor(poison)).all(1), 5] = torch.inf
        return rows

    monkeypatch.setattr(Worker, "record_gradients", spoilt)
    assert torch.equal(found.sum(members, decision), others)
    assert others[-4:].any()


def test_a_bit_on_the_edge_is_decided_by_its_own_unit_alone(
    steered: Callable[..., Steered], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clip norm that is the very norm of a unit's group: the last digit of it says which."""
    found, members = steered("adapters", bits=0.2), units([1, 1, 1, 1, 1, 1])
    seen: list[torch.Tensor] = []
    norms_of = GroupScaling._norms_of

    def watched(self: GroupScaling, rows: torch.Tensor) -> torch.Tensor:
        seen.append(norms_of(self, rows))
        return seen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(GroupScaling, "_norms_of", watched)
        found.sum([members[2]], decided(4, "even"))
    [[norms]] = seen[-1:]
    exact = norms.numpy()
    below, above = np.nextafter(exact, 0), np.nextafter(exact, np.inf)
    for edge, sign in ((below, -1.0), (exact, 1.0), (above, 1.0)):
        decision = Decision(clip_norms=tuple(edge.tolist()), weights=(0.25,) * 4)
        alone = found.sum([members[2]], decision)
        for rest in (members[:2], members[3:], members[:2] + members[3:]):
            moved = found.sum([members[2], *rest], decision) - found.sum(rest, decision)
            assert float((moved - alone).abs().max()) <= 1e-12
        assert alone[-4:].sign().tolist() == [sign] * 4


def test_what_is_scaled_back_is_the_sum_of_units_clipped_group_by_group(
    steered: Callable[..., Steered],
) -> None:
    """The sum that a controller's job releases stands for what its groups' clip norms say."""
    found, members = steered("adapters"), units([1, 2, 1])
    rows = [found.sum([unit], decided(4, "all huge")) for unit in members]
    huge = GroupScaling(_groups(found), found.terms, decided(4, "all huge"), CLIP)
    means = [huge.gradient(row.numpy()).astype(np.float64) for row in rows]  # nothing is clipped
    norms = np.median([_lengths(found, mean) for mean in means], axis=0)
    decision = Decision(clip_norms=tuple(norms.tolist()), weights=(0.1, 0.2, 0.3, 0.4))
    expected = np.zeros(found.size)
    for mean in means:
        for start, end, group in _groups(found).segments:
            length = float(np.linalg.norm(mean[start:end]))
            expected[start:end] += mean[start:end] * min(1.0, norms[group] / length)
    scaling = GroupScaling(_groups(found), found.terms, decision, CLIP)
    back = scaling.gradient(found.sum(members, decision).numpy())
    assert back == pytest.approx(expected, rel=1e-4, abs=1e-5 * np.abs(expected).max())


def _lengths(found: Steered, mean: Any) -> Any:
    """Return the length of each group of a vector."""
    squares = np.zeros(4)
    for start, end, group in _groups(found).segments:
        squares[group] += np.square(mean[start:end]).sum()
    return np.sqrt(squares)


def _groups(found: Steered) -> Groups:
    vector = found.worker.vector
    return Groups.of(vector.names, vector.shapes, found.terms.by)
