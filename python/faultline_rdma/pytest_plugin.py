"""Fixtures for pytest: `faultline`, a running process, and `nic`, its first NIC.

The process is that of `--faultline-control SOCKET`, else of FAULTLINE_CONTROL. Without either, tests that need it are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .client import Faultline, Nic


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("faultline")
    group.addoption("--faultline-control", metavar="SOCKET", help="control socket of faultline serve")


@pytest.fixture
def faultline(request: pytest.FixtureRequest) -> Iterator[Faultline]:
    """A running process. Live rules that a test leaves are removed."""
    control = request.config.getoption("--faultline-control") or os.environ.get("FAULTLINE_CONTROL")
    if not control:
        pytest.skip("give the control socket of faultline serve: --faultline-control SOCKET, or FAULTLINE_CONTROL")
    process = Faultline(control)
    before = {rule["id"] for rule in process.rules()}
    yield process
    for rule in process.rules():
        if rule["id"] not in before:
            process.request("DELETE", f"/v1/rules/{rule['id']}")


@pytest.fixture
def nic(faultline: Faultline) -> Nic:
    """The first NIC of the process."""
    return faultline.nics()[0]
