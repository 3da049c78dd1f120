"""`fedpriv.verify` finds what the command finds, and raises what is not so."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedpriv
from fedpriv.dossier.third import third_accountant
from fedpriv.errors import SignerError
from tests.dossier.made_runs import COORDINATOR, SITE_KEYS, make_run, public


def test_what_is_known_from_elsewhere_is_held_against_it(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    keys = {name: public(SITE_KEYS[name]) for name in made.names}
    known = {"signer": public(COORDINATOR), "sites": keys, "adapter": made.run / "adapter"}
    expected = made.verify(**known, third=third_accountant())
    assert fedpriv.verify(str(made.out), **known) == expected
    assert fedpriv.verify(made.out) != expected
    with pytest.raises(SignerError):
        fedpriv.verify(made.out, signer=next(iter(keys.values())))
