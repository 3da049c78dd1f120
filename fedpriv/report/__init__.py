"""What a run tells the people who answer for it.

`budget` is the signed statement a site makes about its own spending; `html` turns a run
directory into one page. Importing this package loads neither matplotlib nor jinja2: they
are paid for when a page is written.
"""

from fedpriv.report.budget import BudgetEvent, BudgetReport, Signature
from fedpriv.report.html import write_report

__all__ = ["BudgetEvent", "BudgetReport", "Signature", "write_report"]
