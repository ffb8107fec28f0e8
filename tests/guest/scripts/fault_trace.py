#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The driver's tracepoints tell of the same page faults, removed entries and leases as the device's counters, while the
tests of page faults, prefetches and watched regions run.
"""
import collections
import json
import os
import pathlib
import re
import subprocess
import time

TRACING = pathlib.Path("/sys/kernel/tracing")
EVENTS = ("fault", "serve", "resume", "invalidate", "prefetch", "lease")
[SLOT] = [entry.name for entry in pathlib.Path("/sys/bus/pci/drivers/faultline").glob("0000:*")]
LINK = os.environ["RDMA_DEV"] + "/1"
LINE = re.compile(r"\s([\d.]+): faultline_(\w+): (\S+) (.*)")

Event = collections.namedtuple("Event", "at device fields")


def counters():
    [shown] = json.loads(subprocess.check_output(["rdma", "-j", "statistic", "show", "link", LINK]))
    return shown


class Trace:
    """An instance of its own: what others trace is left alone."""

    def __init__(self):
        if not (TRACING / "events").exists():
            subprocess.check_call(["mount", "-t", "tracefs", "none", TRACING])
        self.path = TRACING / "instances/fault_trace"
        self.path.mkdir()
        (self.path / "buffer_size_kb").write_text("16384")
        # The driver measures with this clock.
        (self.path / "trace_clock").write_text("mono")
        for event in EVENTS:
            (self.path / f"events/faultline/faultline_{event}/enable").write_text("1")

    def events(self):
        """The events so far, by name."""
        found = collections.defaultdict(list)
        for line in (self.path / "trace").read_text().splitlines():
            match = LINE.search(line)
            if not match:
                assert line.startswith("#"), line
                continue
            at, name, device, rest = match.groups()
            fields = {key: int(value, 0) for key, value in (word.split("=") for word in rest.split())}
            found[name].append(Event(float(at), device, fields))
        for cpu in self.path.glob("per_cpu/cpu*/stats"):
            for lost in re.findall(r"(?:overrun|dropped events): (\d+)", cpu.read_text()):
                assert lost == "0", cpu.read_text()
        return found

    def close(self):
        (self.path / "events/enable").write_text("0")
        self.path.rmdir()


def by_token(events):
    tokens = {event.fields["token"]: event for event in events}
    assert len(tokens) == len(events), "a token occurs twice"
    return tokens


def answered_since(before):
    """By how much the device's counters have grown when all faults are answered.

    A program may end before the driver has answered a fault of a queue pair that has failed for another reason.
    """
    end = time.monotonic() + 20
    while True:
        after = counters()
        grown = {name: after[name] - before[name] for name in after if isinstance(after[name], int)}
        answered = grown["page_faults_resumed"] + grown["page_faults_failed"]
        if answered == grown["page_faults"] or time.monotonic() > end:
            return grown
        time.sleep(0.1)


def run(trace, *command):
    """Runs a test. Returns the events and by how much the device's counters have grown."""
    (trace.path / "trace").write_text("")
    before = counters()
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "PASS" in output.split(), output
    grown = answered_since(before)
    events = trace.events()
    print(*command, {name: len(events[name]) for name in EVENTS},
          {name: grown[name] for name in ("page_faults", "page_faults_resumed", "page_faults_failed",
                                          "page_invalidations")}, flush=True)
    return events, grown


def check_faults(events, grown):
    """Each fault of the device is read, served and answered once, in this order."""
    faults, served, resumed = (by_token(events[name]) for name in ("fault", "serve", "resume"))
    assert len(faults) == grown["page_faults"] > 0
    assert faults.keys() == served.keys() == resumed.keys()
    failed = 0
    for token, fault in faults.items():
        serve, resume = served[token], resumed[token]
        assert fault.device == serve.device == resume.device == SLOT
        assert fault.at <= serve.at <= resume.at, (fault, serve, resume)
        assert (fault.fields["key"], fault.fields["va"]) == (serve.fields["key"], serve.fields["va"])
        first, last = fault.fields["va"] // 4096, (fault.fields["va"] + fault.fields["bytes"] - 1) // 4096
        assert serve.fields["pages"] == last - first + 1, (fault, serve)
        assert (serve.fields["result"] != 0) == (resume.fields["status"] != 0), (serve, resume)
        failed += resume.fields["status"] != 0
        # The trace shows microseconds.
        told = sum(resume.fields[part] for part in ("wait_ns", "map_ns", "post_ns")) / 1e9
        assert 0 < told <= resume.at - fault.at + 3e-6, (fault, resume)
    assert failed == grown["page_faults_failed"]
    assert len(faults) - failed == grown["page_faults_resumed"]
    return failed


def check_invalidations(events, grown):
    assert sum(event.fields["entries"] for event in events["invalidate"]) == grown["page_invalidations"]


trace = Trace()
try:
    events, grown = run(trace, "odp_faults", "ahead")
    assert check_faults(events, grown) == 0
    check_invalidations(events, grown)
    assert not events["lease"] and not events["prefetch"]

    events, grown = run(trace, "odp_faults", "refused")
    assert check_faults(events, grown) > 0
    check_invalidations(events, grown)

    events, grown = run(trace, "region_statistics")
    assert check_faults(events, grown) == 0
    check_invalidations(events, grown)
    assert grown["page_invalidations"] > 0
    [prefetch] = events["prefetch"]
    assert prefetch.fields["length"] == 16 * 4096 and prefetch.fields["result"] == 0, prefetch
    # The faults come after it, and spare its pages.
    start = prefetch.fields["start"]
    first = [event for event in events["fault"] if event.fields["key"] == prefetch.fields["key"]][0]
    assert first.at > prefetch.at and first.fields["va"] >= start + 16 * 4096, (prefetch, first)

    events, grown = run(trace, "decoherence")
    leases = events["lease"]
    # Of each mode; some were answered and some not; only leases wait.
    assert {event.fields["mode"] for event in leases} == {1, 2, 3}
    assert all(event.fields["wait_ns"] == 0 for event in leases if event.fields["mode"] != 3)
    waits = [event for event in leases if event.fields["wait_ns"] > 0]
    assert {event.fields["answered"] for event in waits} == {0, 1}, waits
finally:
    trace.close()

# The tool has disabled the tracepoints that it enabled.
assert (TRACING / "events/faultline/enable").read_text().strip() == "0"
print("PASS")
