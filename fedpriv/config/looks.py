"""`[evaluation.sites]`: paid looks at how good the model is on the sites' held-out records."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fedpriv.section import Section

MAX_RANGE = 1e6  # of a loss; more is a mistake


class LooksSection(Section):
    """Looks at the sites' held-out records. They cost privacy, as steps do."""

    looks: int = Field(
        ge=1, le=1000, description="Number of looks, spread evenly; one follows the last round."
    )
    slots: int = Field(
        4,
        ge=1,
        le=1000,
        description="Plan steps of a look. More make every step's noise a little larger; the"
        " look's own noise falls with their square root.",
    )
    loss_range: float = Field(
        2.0,
        ge=1 / MAX_RANGE,
        le=MAX_RANGE,
        description="Largest difference from the coordinator's loss that counts in full; larger"
        " ones count as this. Noise grows with it.",
    )
    accuracy_range: float = Field(
        1.0, ge=1 / MAX_RANGE, le=1, description="The same for accuracy, as a share of 1."
    )

    @property
    def steps(self) -> int:
        """Return the number of the plan's steps that all looks take together."""
        return self.looks * self.slots

    def due(self, number: int, rounds: int) -> int:
        """Return how many looks there are up to and including a round."""
        return number * self.looks // rounds

    def after(self, look: int, rounds: int) -> int:
        """Return the round after which a look comes. Both are counted from 1."""
        return -(-look * rounds // self.looks)


def held_out_units(held_out: Path | float | None, size: int, stated: int | None) -> int | None:
    """Return the declared number of units that a site keeps apart; None if nobody declared it.

    Args:
        held_out: a share of the site's units, or a file of further ones.
        size: the site's declared size.
        stated: the number of units in such a file, as a person states it.

    Privacy:
        Computed from settings alone, never from records.
    """
    if isinstance(held_out, float):
        return max(1, round(held_out * size))
    return stated if held_out else None


def check_held_out(
    held_out: Path | float | None, size: int | None, stated: int | None, delta: float, key: str
) -> None:
    """Check that a site's statements about its held-out units fit together.

    Args:
        delta: δ of the claim, which is about these units, too.
        key: the key of the table, such as ``data``.

    Raises:
        ValueError: they don't.
    """
    if stated is None:
        return
    if not isinstance(held_out, Path):
        share = "of a share, the number of units follows from size"
        raise ValueError(f"{key}.held_out_size: belongs to a file of held-out records; {share}")
    units = stated + (size or 0)
    called = "units, those to train on and those held out"
    check_delta_below(units, called, delta, f"{key}.held_out_size: δ =")


def check_delta_below(units: int, called: str, delta: float, stated: str) -> None:
    """Check that δ is below 1 / units.

    Args:
        called: what the message calls the units; it begins with `stated`.

    Raises:
        ValueError: it isn't.
    """
    if delta >= 1 / units:
        raise ValueError(
            f"{stated} {delta:g} is not below 1 / {called} (1 / {units} = {1 / units:.2g}),"
            " so it would allow publishing a whole unit"
        )
