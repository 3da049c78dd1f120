"""What a person may write in a federation file or a site's, and how they are read."""

from fedpriv.config.job import JobConfig, SiteSection
from fedpriv.config.load import load_job, load_site
from fedpriv.config.site import SiteFile

__all__ = ["JobConfig", "SiteFile", "SiteSection", "load_job", "load_site"]
