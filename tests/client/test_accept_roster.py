"""One yes to a roster that follows this site's own; the site's file stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fedpriv.config.load import load_site
from fedpriv.errors import ConfigError
from fedpriv.pki.signing import load_or_create_key
from fedpriv.secure_sum.roster import Roster, RosterEntry, successor, write
from fedpriv_client.roster_entry import accept
from fedpriv_client.settings import roster_of
from fedpriv_client.site_settings import SIGNING_KEY
from tests.client.test_roster_entry import FILE
from tests.secure_sum.secure_sites import sites


class Consortium:
    """A site's folder, with the roster that its file states."""

    def __init__(self, folder: Path) -> None:
        self.path, self.new = folder / "site.toml", folder / "new.json"
        key = load_or_create_key(folder / "state" / SIGNING_KEY).public_key().public_bytes_raw()
        self.own = RosterEntry(name="cardiology", public_key=key.hex())
        self.first = Roster.of([self.own, *(site.entry for site in sites("north", "south"))])
        write(folder / "roster.json", self.first)
        self.state_it(self.first)

    def state_it(self, roster: Roster) -> None:
        sum_ = f'[secure_sum]\nroster = "roster.json"\ndigest = "{roster.digest}"\n'
        text = FILE.replace("per_job = 4.0", "per_job = 4.0\nepsilon_alone = 40.0")
        self.path.write_text(text + sum_)

    def accept(self, roster: Roster, say: str = "yes") -> str:
        write(self.new, roster)

        def ask() -> None:
            if say == "no":
                raise typer.Abort

        return accept(load_site(self.path), self.new, ask)

    @property
    def now(self) -> Roster | None:
        return roster_of(load_site(self.path))


@pytest.fixture
def consortium(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path)


def test_one_yes_is_enough_for_who_joins_and_who_leaves(
    consortium: Consortium, capsys: pytest.CaptureFixture[str]
) -> None:
    second = successor(consortium.first, [site.entry for site in sites("east")])
    third = successor(second, [], ["south"])
    with pytest.raises(typer.Abort):
        consortium.accept(second, say="no")
    assert consortium.now == consortium.first
    assert "Accepted" in consortium.accept(second)
    assert consortium.now == second
    consortium.accept(third)
    assert consortium.now == third
    text = capsys.readouterr().out
    assert "east joins, with the key " in text and "south leaves" in text
    assert "north" not in text  # whose key was compared before


def test_what_does_not_follow_is_refused(consortium: Consortium) -> None:
    second = successor(consortium.first, [site.entry for site in sites("east")])
    third = successor(second, [], ["south"])
    stranger = Roster.of([consortium.own, *(site.entry for site in sites("north", "south"))])
    another_key = successor(consortium.first, [site.entry for site in sites("cardiology")])
    for roster, words in (
        (third, "does not follow this site's roster"),  # one was left out
        (stranger, "does not follow this site's roster"),
        (another_key, "does not name this site with its key"),
        (successor(consortium.first, [], ["cardiology"]), "does not name this site"),
    ):
        with pytest.raises(ConfigError, match=words):
            consortium.accept(roster)
    assert consortium.now == consortium.first


def test_what_the_file_states_anew_counts(consortium: Consortium) -> None:
    """An administrator who compared another roster is not overruled by an older yes."""
    second = successor(consortium.first, [site.entry for site in sites("east")])
    consortium.accept(second)
    third = successor(second, [], ["south"])
    write(consortium.path.with_name("roster.json"), third)
    consortium.state_it(third)
    assert consortium.now == third
    (consortium.path.parent / "state" / "roster.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"state/roster\.json"):
        _ = consortium.now


def test_without_a_roster_there_is_nothing_to_follow(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path)
    consortium.path.write_text(FILE)
    with pytest.raises(ConfigError, match="no roster can follow it"):
        consortium.accept(successor(consortium.first, []))
