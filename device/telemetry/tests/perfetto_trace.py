#!/usr/bin/env python3
"""Counts the page faults of a trace for Perfetto, and the percentiles of their stages, with SQL.

usage: perfetto_trace.py TRACE.pftrace [--since NS] [--nic NAME] [--trace-processor SHELL]

Prints what `faultline report --json` has of the same faults, as JSON: `faults`, the `tokens` of the faults, and `stages`.

With SHELL (Perfetto's `trace_processor_shell`) the queries run in the trace processor. The package `perfetto` of PyPI does
not ship this program; it downloads it when it is first used. Without SHELL, the file is decoded with Perfetto's
descriptors, which the package ships, and loaded into an SQLite database. Its tables have the names and columns of the
trace processor's, as far as the queries need them, so the queries are the same. The decoder checks what the trace
processor would count as errors: slices that do not nest or have no end, tracks without a description, events that are not
sorted, and fields that Perfetto does not know. Arrows with one end are refused too.
"""

import argparse
import json
import sqlite3
import sys
from collections import defaultdict

# Number of the one field that is not Perfetto's: the records of the trace, from which a report can be made.
RECORDS = 20117

SCHEMA = """
create table process (upid integer primary key, pid integer, name text);
create table track (id integer primary key, name text, parent_id integer, upid integer);
create table slice (id integer primary key, ts integer, dur integer, track_id integer, category text, name text,
    depth integer, parent_id integer, arg_set_id integer);
create table args (arg_set_id integer, key text, int_value integer, string_value text);
create table flow (id integer primary key, slice_out integer, slice_in integer);
"""

# The slices of page faults and of further accesses that they delayed, with what the queries below need.
FAULTS = """
with wanted as (
    select s.id, s.dur, s.name from slice s join process_track t on s.track_id = t.id join process p on t.upid = p.upid
    where s.name in ('fault', 'fault access') and s.category = 'fault' and s.ts > {since} and p.name glob '{nic}'
)
"""

COUNT = FAULTS + "select count(*) from wanted where name = 'fault'"

TOKENS = FAULTS + """
select a.int_value from wanted w join slice s on s.id = w.id join args a on a.arg_set_id = s.arg_set_id
where w.name = 'fault' and a.key = 'debug.token' order by 1
"""

# Percentiles by nearest rank, as the report defines them.
STAGES = FAULTS + """
, stage as (
    select c.name, c.dur from slice c join wanted w on c.parent_id = w.id
    union all
    select 'total', w.dur from wanted w
    where exists (select 1 from slice c where c.parent_id = w.id and c.name = 'data')
), ranked as (
    select name, dur, row_number() over (partition by name order by dur) as place,
        count(*) over (partition by name) as number
    from stage
)
select name, number,
    max(case when place = (number * 500 + 999) / 1000 then dur end),
    max(case when place = (number * 900 + 999) / 1000 then dur end),
    max(case when place = (number * 990 + 999) / 1000 then dur end),
    max(case when place = (number * 999 + 999) / 1000 then dur end),
    max(dur)
from ranked group by name, number order by name
"""
COLUMNS = ("stage", "count", "p50", "p90", "p99", "p999", "max")


class Decoder:
    """Loads the packets of a trace into the database."""

    def __init__(self, database):
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

        self.messages = messages
        self.database = database
        self.described = {}
        # For each track its open slices: number, begin, and the number of slices around it.
        self.open = defaultdict(list)
        self.flow_ends = defaultdict(list)
        self.slices = 0
        self.last = 0

    def load(self, path):
        """Reads a file."""
        from google.protobuf.unknown_fields import UnknownFieldSet

        trace = self.messages.Trace()
        with open(path, "rb") as file:
            trace.ParseFromString(file.read())
        assert not len(UnknownFieldSet(trace)), "the file has fields that are not those of a trace"
        for packet in trace.packet:
            foreign = [field.field_number for field in UnknownFieldSet(packet) if field.field_number != RECORDS]
            assert not foreign, f"a packet has fields that Perfetto does not know: {foreign}"
            if packet.HasField("track_descriptor"):
                self.track(packet.track_descriptor)
            if packet.HasField("track_event"):
                assert not len(UnknownFieldSet(packet.track_event)), "an event has fields that Perfetto does not know"
                self.event(packet.timestamp, packet.track_event)
        unfinished = [slices for slices in self.open.values() if slices]
        assert not unfinished, f"slices have no end: {unfinished}"
        alone = [flow for flow, slices in self.flow_ends.items() if len(slices) < 2]
        assert not alone, f"arrows have one end: {alone}"
        for slices in self.flow_ends.values():
            ends = zip(slices, slices[1:], strict=False)
            self.database.executemany("insert into flow (slice_out, slice_in) values (?, ?)", ends)

    def track(self, descriptor):
        """A description of a track."""
        uuid = descriptor.uuid
        assert uuid not in self.described, f"track {uuid} is described twice"
        if descriptor.HasField("process"):
            process = descriptor.process
            assert process.pid > 0 and process.process_name, f"process {uuid} has no number or no name"
            self.described[uuid] = uuid
            row = (uuid, process.pid, process.process_name)
            self.database.execute("insert into process values (?, ?, ?)", row)
        else:
            assert descriptor.name, f"track {uuid} has no name"
            assert descriptor.parent_uuid in self.described, f"the parent of track {uuid} has no description"
            self.described[uuid] = self.described[descriptor.parent_uuid]
        row = (uuid, descriptor.name, descriptor.parent_uuid, self.described[uuid])
        self.database.execute("insert into track values (?, ?, ?, ?)", row)

    def event(self, time, event):
        """The beginning or the end of a slice, or an instant."""
        kinds = self.messages.TrackEvent
        track = event.track_uuid
        assert track in self.described, f"track {track} has no description"
        assert time >= self.last, "events are not sorted by time"
        self.last = time
        around = self.open[track]
        if event.type == kinds.TYPE_SLICE_END:
            assert around, f"a slice of track {track} ends that has not begun"
            number, begin = around.pop()
            self.database.execute("update slice set dur = ? where id = ?", (time - begin, number))
        else:
            number = self.slices
            self.slices += 1
            category = ",".join(event.categories)
            parent = around[-1][0] if around else None
            row = (number, time, 0, track, category, event.name, len(around), parent, number)
            self.database.execute("insert into slice values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self.annotations(number, event)
            if event.type == kinds.TYPE_SLICE_BEGIN:
                around.append((number, time))
            else:
                assert event.type == kinds.TYPE_INSTANT, f"an event of the unknown type {event.type}"
        for flow in event.flow_ids:
            self.flow_ends[flow].append(number)

    def annotations(self, number, event):
        """The arguments of a slice."""
        for annotation in event.debug_annotations:
            kind = annotation.WhichOneof("value")
            value = getattr(annotation, kind)
            as_number = value if kind in ("uint_value", "int_value", "bool_value") else None
            if as_number is not None and as_number >= 1 << 63:
                # The trace processor stores integers with 64 bits and a sign too.
                as_number -= 1 << 64
            row = (number, f"debug.{annotation.name}", as_number, value if kind == "string_value" else None)
            self.database.execute("insert into args values (?, ?, ?, ?)", row)


def decoded(path):
    """A function that answers queries about the decoded file."""
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    # The trace processor has a table of the tracks that belong to processes.
    database.execute("create view process_track as select * from track where upid is not null")
    Decoder(database).load(path)
    return lambda query: database.execute(query).fetchall()


def processed(path, shell):
    """A function that asks Perfetto's trace processor."""
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    processor = TraceProcessor(trace=path, config=TraceProcessorConfig(bin_path=shell))

    def answers(query):
        # The first row has the names of the columns, in the order of the query.
        return [tuple(vars(row).values()) for row in processor.query(query)]

    errors = answers("select name, value from stats where severity = 'error' and value > 0")
    assert not errors, errors
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--since", type=int, default=-1, metavar="NS", help="only faults raised after this time")
    parser.add_argument("--nic", default="*", metavar="NAME", help="only faults of this NIC")
    parser.add_argument("--trace-processor", metavar="SHELL")
    arguments = parser.parse_args()
    shell = arguments.trace_processor
    ask = processed(arguments.trace, shell) if shell else decoded(arguments.trace)
    nic = arguments.nic.replace("'", "''")
    faults, tokens, stages = (ask(query.format(since=arguments.since, nic=nic)) for query in (COUNT, TOKENS, STAGES))
    result = {
        "faults": faults[0][0],
        "tokens": [row[0] % (1 << 64) for row in tokens],
        "stages": [dict(zip(COLUMNS, row, strict=True)) for row in stages],
    }
    json.dump(result, sys.stdout)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
