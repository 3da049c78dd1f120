"""Name `fedpriv.plan`, which does in Python what the command `fedpriv plan` does."""

from fedpriv.privacy.accounting.planning import plan as plan
