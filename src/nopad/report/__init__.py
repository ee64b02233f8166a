"""A report page: what was packed, how well, and what the packs look like. Needs the extra `report`.

`read_subject` reads a histogram, a plan or a packed dataset; `write_report` puts any number of such subjects on one
offline page; `write_pictures` saves their charts as PNG files.
"""

from __future__ import annotations

from nopad.report.page import write_pictures, write_report
from nopad.report.subject import Subject, read_subject

__all__ = ["Subject", "read_subject", "write_pictures", "write_report"]
