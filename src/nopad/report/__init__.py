"""Write a report page: what was packed, how well, and what the packs look like. Needs the extra `report`.

`read_subject` reads a histogram, a plan or a packed dataset. `write_report` writes one offline page about one or more
such subjects, or a picture of one. `write_pictures` saves a picture and all charts of each subject as PNG files.
`Settings` has the rates from which steps, hours, money and energy are computed.
"""

from __future__ import annotations

from nopad.report.page import write_pictures, write_report
from nopad.report.settings import Settings
from nopad.report.subject import Subject, read_subject

__all__ = ["Settings", "Subject", "read_subject", "write_pictures", "write_report"]
