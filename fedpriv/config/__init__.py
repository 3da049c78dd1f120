"""What a person may write in a federation file, and how it is read."""

from fedpriv.config.job import JobConfig, SiteSection
from fedpriv.config.load import load_job

__all__ = ["JobConfig", "SiteSection", "load_job"]
