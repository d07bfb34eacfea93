"""What a record says: tables, a figure, findings, and which encoding to choose."""

from posenc.report.advice import advice
from posenc.report.choose import Answer, Request, choose
from posenc.report.findings import Finding, findings
from posenc.report.summary import Point, row_points, summarise

__all__ = [
    "Answer",
    "Finding",
    "Point",
    "Request",
    "advice",
    "choose",
    "findings",
    "row_points",
    "summarise",
]
