"""The types of `import fedpriv`; where each name is from, pyproject.toml says to Python.

Packages above the library are named here for type checkers alone: nothing imports this file.
"""

from fedpriv.config.load import load_job as load_job
from fedpriv.data.federation import write_federation as write_federation
from fedpriv.dossier.from_python import verify as verify
from fedpriv.errors import FedprivError as FedprivError
from fedpriv.loop.arguments import PrivateConfig as PrivateConfig
from fedpriv.loop.step import PrivateStep as PrivateStep
from fedpriv.loop.trainer import PrivateTrainer as PrivateTrainer
from fedpriv.privacy.accounting.from_python import plan as plan
from fedpriv.privacy.ledger.ledger import Ledger as Ledger
from fedpriv.serving import load_site_model as load_site_model
from fedpriv_audit.from_python import audit as audit
from fedpriv_comparison.from_python import compare as compare
from fedpriv_forecasting.of_file import forecast as forecast
from fedpriv_simulation.from_python import simulate as simulate

__version__: str
__all__ = [
    "FedprivError",
    "Ledger",
    "PrivateConfig",
    "PrivateStep",
    "PrivateTrainer",
    "audit",
    "compare",
    "forecast",
    "load_job",
    "load_site_model",
    "plan",
    "simulate",
    "verify",
    "write_federation",
]
