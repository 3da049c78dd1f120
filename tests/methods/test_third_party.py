"""A method of another package: installed as any package is, found by name, and run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv.plugins import METHODS, load
from fedpriv.plugins import installed as names_in
from fedpriv.report.budget import read
from fedpriv.report.received import verify
from fedpriv_simulation.simulate import simulate

METHOD = '''
"""DP-LoRA on the first part of the trained vector; nothing is released of the rest."""

import numpy as np

from fedpriv.errors import ConfigError, ProtocolError
from fedpriv.methods.dp_lora.server_half import DpLoraServer
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.mechanism.privatised import post_process
from fedpriv.private_training.unit_sum import sum_of_units
from fedpriv.public_update.update import Aggregate


class FirstPart:
    needs_set = False

    def at_site(self, proposal, records=()):
        share = proposal.settings.get("share")
        if not isinstance(share, float):
            raise ProtocolError("settings.share: expected a number")
        return Site(share)


class Site(DpLora):
    def __init__(self, share):
        self.share = share

    def prepare(self, worker, parameters):
        return int(self.share * worker.vector.size)

    def clipped_sum(self, worker, units, parameters, clip_norm, numerics):
        worker.vector.write(parameters)
        size = self.prepare(worker, parameters)
        return sum_of_units(
            worker, units, clip_norm, numerics, size=size,
            values=lambda batch: worker.record_gradients(batch)[:, :size],
        )


class Server(DpLoraServer):
    @staticmethod
    def settings(config):
        share = config.method.get("share")
        if not isinstance(share, float) or not 0 < share < 1:
            raise ConfigError("expected a share", key="method.share", value=share)
        return {"share": share}

    def __init__(self, context):
        self.trained = context.trained
        self.values = int(context.proposal.settings["share"] * self.trained)

    def gradient(self, mean):
        def padded(part):
            return np.concatenate([part, np.zeros(self.trained - len(part), dtype=np.float32)])

        return Aggregate(post_process(padded, mean.gradient), mean.noise_variance, mean.units)
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A wheel of the package, put beside the others by pip."""
    wheel, name = tmp_path / "first_part-1.0-py3-none-any.whl", "first_part-1.0.dist-info"
    files = {
        "first_part.py": METHOD,
        f"{name}/METADATA": "Metadata-Version: 2.1\nName: first-part\nVersion: 1.0\n",
        f"{name}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}/entry_points.txt": "[fedpriv.methods]\nfirst-part = first_part:FirstPart\n"
        "[fedpriv.server_halves]\nfirst-part = first_part:Server\n",
    }
    files[f"{name}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{name}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    site = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
    monkeypatch.syspath_prepend(str(site))
    load.cache_clear()
    yield
    load.cache_clear()
    sys.modules.pop("first_part", None)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_method_of_another_package_runs(federation: Callable[..., Any], tmp_path: Path) -> None:
    assert "first-part" in names_in(METHODS)
    file = federation(rounds=3, extra="[method]\nshare = 0.25")
    config = load_job(file, ["job.method=first-part"])
    found = simulate(config, tmp_path / "run", source=file, insecure_seed=1)
    assert found.run.info["status"] == "finished"
    trained = found.run.info["model"]["trainable"]
    for line in found.rounds:
        assert {site["status"] for site in line["sites"].values()} == {"ok"}
        assert line["bytes_up"] < 2 * (0.25 * 4 * trained + 1500)  # a quarter, and the bodies
    for name in ("site-0", "site-1"):
        report = read(tmp_path / "run" / "sites" / name / "budget.json")
        verify(report)
        assert [event.count for event in report.events] == [3]


@pytest.mark.usefixtures("installed")
def test_its_settings_are_its_own_to_check(federation: Callable[..., Any], tmp_path: Path) -> None:
    file = federation(extra="[method]\nshare = 4.0")
    config = load_job(file, ["job.method=first-part"])
    with pytest.raises(ConfigError, match=r"method\.share: expected a share \(got 4\.0\)"):
        simulate(config, tmp_path / "run", source=file)
    assert not (tmp_path / "run").exists()


def test_a_method_that_is_not_installed_is_named_with_those_that_are(
    federation: Callable[..., Any], tmp_path: Path
) -> None:
    file = federation()
    config = load_job(file, ["job.method=first-part"])
    with pytest.raises(ConfigError, match=r"job\.method: no such method.*dp-lora, pe-sgd"):
        simulate(config, tmp_path / "run", source=file)
