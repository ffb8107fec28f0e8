#!/usr/bin/env python3
"""Compares a trace for Perfetto with the report of the same trace.

usage: perfetto_trace.py TRACE.pftrace REPORT.json [--trace-processor SHELL]

REPORT.json is what `faultline report --json` prints. With SHELL (Perfetto's `trace_processor_shell`) the numbers come
from SQL over the trace. Without it, the trace is decoded with the descriptors of the Python package `perfetto`, and
checked for slices that do not nest, tracks without a description and arrows with one end.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict

# Faults, and accesses that others' faults have delayed.
TOTALS = ("fault", "fault access")
STAGES = ("interrupt", "wait", "map", "post", "data")
PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1000}


def percentiles(durations):
    """Percentiles as the report defines them: nearest rank."""
    durations = sorted(durations)
    result = {"count": len(durations)}
    for name, thousandths in PERCENTILES.items():
        rank = -(-len(durations) * thousandths // 1000)
        result[name] = durations[max(rank, 1) - 1] if durations else 0
    return result


def durations_by_sql(path, shell):
    """Number of faults, and durations by stage, asked of the trace processor."""
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with TraceProcessor(trace=path, config=TraceProcessorConfig(bin_path=shell)) as processor:
        errors = [
            f"{row.name}: {row.value}"
            for row in processor.query("select name, value from stats where severity = 'error' and value > 0")
        ]
        assert not errors, errors
        faults = next(iter(processor.query("select count(*) as n from slice where name = 'fault'"))).n
        stages = defaultdict(list)
        for stage in STAGES:
            query = f"select dur from slice where category = 'fault' and name = '{stage}'"
            stages[stage] = [row.dur for row in processor.query(query)]
        query = """select s.dur from slice s where s.name in ('fault', 'fault access') and exists
            (select 1 from slice c where c.parent_id = s.id and c.name = 'data')"""
        stages["total"] = [row.dur for row in processor.query(query)]
        return faults, stages


def slices_of(trace, event_type):
    """Slices as (name, names of the slices in it, duration), and the events of each arrow."""
    described = {}
    open_slices = defaultdict(list)
    slices = []
    flows = Counter()
    last = 0
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in described, f"track {descriptor.uuid} is described twice"
            described[descriptor.uuid] = descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in described, f"track {event.track_uuid} has no description"
        assert packet.timestamp >= last, "events are not sorted by time"
        last = packet.timestamp
        flows.update(event.flow_ids)
        stack = open_slices[event.track_uuid]
        if event.type == event_type.TYPE_SLICE_BEGIN:
            stack.append((event.name, packet.timestamp, []))
        elif event.type == event_type.TYPE_SLICE_END:
            name, begin, children = stack.pop()
            slices.append((name, children, packet.timestamp - begin))
            if stack:
                stack[-1][2].append(name)
    unfinished = [stack for stack in open_slices.values() if stack]
    assert not unfinished, f"slices have no end: {unfinished}"
    for descriptor in described.values():
        if descriptor.HasField("process"):
            assert descriptor.process.pid > 0 and descriptor.process.process_name
        else:
            assert descriptor.name and described[descriptor.parent_uuid].HasField("process")
    return slices, flows


def durations_by_decoding(path):
    """The same as `durations_by_sql`, from the packets."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    trace = messages.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    slices, flows = slices_of(trace, messages.TrackEvent)
    alone = [flow for flow, ends in flows.items() if ends < 2]
    assert not alone, f"arrows have one end: {alone}"
    stages = {stage: [length for name, _, length in slices if name == stage] for stage in STAGES}
    stages["total"] = [length for name, children, length in slices if name in TOTALS and "data" in children]
    return sum(name == "fault" for name, _, _ in slices), stages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("report")
    parser.add_argument("--trace-processor", metavar="SHELL")
    arguments = parser.parse_args()
    with open(arguments.report, encoding="utf-8") as file:
        report = json.load(file)
    if arguments.trace_processor:
        faults, stages = durations_by_sql(arguments.trace, arguments.trace_processor)
    else:
        faults, stages = durations_by_decoding(arguments.trace)
    wrong = []
    if faults != report["faults"]["all"]:
        wrong.append(f"{faults} faults in the trace, {report['faults']['all']} in the report")
    for reported in report["stages"]:
        stage = reported.pop("stage")
        measured = percentiles(stages[stage])
        if measured != reported:
            wrong.append(f"{stage}: {measured} in the trace, {reported} in the report")
    print("\n".join(wrong) or f"{faults} faults, {len(report['stages'])} stages: trace and report agree")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
