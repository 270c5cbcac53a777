"""Repeat failed tests that depend on how the machine schedules processes; only continuous integration asks for it.

Most tests only compute, and always pass or always fail. Those under ``LIVE`` start processes, lose packets and kill
ranks, and among thousands of them on a shared machine one may meet an unforeseen stall. With ``TACOS_ATTEMPTS=2`` such
a test runs once more if it fails. The run then ends with the first error, so that its cause can be found.
"""

from __future__ import annotations

import os

from _pytest.runner import runtestprotocol

LIVE = (
    "README.md", "docs/", "src/tacos/runtime/", "src/tacos/hub/", "tests/cli/test_interrupt.py", "tests/hub/",
    "tests/runtime/", "tests/test_examples.py", "tests/test_workers.py", "tests/view/",
)  # fmt: skip
FAILED_BEFORE = "failed before"
"""The property of a report that holds the errors of earlier attempts."""


def attempts() -> int:
    """How often a test under ``LIVE`` may run."""
    return int(os.environ.get("TACOS_ATTEMPTS", "1"))


def pytest_runtest_protocol(item, nextitem):
    """Run a test until it passes or has used its attempts, and report the last of them."""
    if attempts() < 2 or not item.nodeid.startswith(LIVE):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(attempts())):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [report for report in reports if report.failed]
        if not failed or left == 0:
            break
        item.user_properties.append((FAILED_BEFORE, failed[0].longreprtext))
        if hasattr(item, "_initrequest"):
            item._initrequest()  # new fixtures; items of pages have none
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter):
    """Show which tests did not pass at once, and why."""
    for report in terminalreporter.stats.get("passed", []):
        for text in (text for name, text in report.user_properties if name == FAILED_BEFORE):
            terminalreporter.section(f"{report.nodeid} passed after a failure", sep="-")
            terminalreporter.write_line(text)
