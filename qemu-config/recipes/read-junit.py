#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prints the test cases of a JUnit file, one a line: read-junit FILE. Fails if the suites declare other counts."""

import sys
import xml.etree.ElementTree as ElementTree

for suite in ElementTree.parse(sys.argv[1]).getroot().iter("testsuite"):
    name, cases = suite.get("name"), suite.findall("testcase")
    failures = [case.find("failure") for case in cases]
    declared = (suite.get("tests"), suite.get("failures"))
    present = (str(len(cases)), str(sum(failure is not None for failure in failures)))
    if declared != present:
        sys.exit(f"{name}: {declared} tests and failures are declared, and {present} are present")
    for case, failure in zip(cases, failures, strict=True):
        result = "passed" if failure is None else f"failed: {failure.get('message')}"
        print(f"{name}: {case.get('name')}: {result}")
