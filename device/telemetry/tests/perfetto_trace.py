#!/usr/bin/env python3
"""Counts the page faults of a trace with Perfetto's trace processor, and the percentiles of their stages, with SQL.

usage: perfetto_trace.py MODULE TRACE [--since NS] [--nic NAME]

MODULE is the trace processor as the WebAssembly module that Perfetto's web page uses, TRACE a file of
`faultline trace`. Prints what `faultline report --json` has of the same faults, as JSON: `faults`, the `tokens` of the
faults, `stages`; and the number of `arrows` between slices. Fails if the trace processor counts an error or a loss, or
if a slice has no end.
"""

import argparse
import json
import os
import struct
import sys
import tempfile
import time

import wasmtime
from perfetto.common.exceptions import PerfettoException
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

# The slices of page faults and of further accesses that they delayed, with what the queries below need. A NIC is a
# process. A query's columns need different names.
FAULTS = """
with wanted as (
    select s.id, s.dur, s.name from slice s join process_track t on s.track_id = t.id join process p on t.upid = p.upid
    where s.name in ('fault', 'fault access') and s.category = 'fault' and s.ts > {since} and p.name glob '{nic}'
)
"""

COUNT = FAULTS + "select count(*) from wanted where name = 'fault'"

TOKENS = FAULTS + """
select a.int_value from wanted w join slice s on s.id = w.id join args a on a.arg_set_id = s.arg_set_id
where w.name = 'fault' and a.key in ('debug.token', 'args.token') order by 1
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


# What must not be: how many, and what it is.
MISTAKES = """
select value, name from stats where severity in ('error', 'data_loss') and value > 0
union all
select count(*), 'slices without an end' from slice where dur < 0 having count(*) > 0
"""

ARROWS = "select count(*) from flow"


# Octets of the module's buffer for requests. A longer request is passed in parts.
BUFFER = 1 << 20
# Octets of a page of the module's memory.
PAGE = 1 << 16
# ENOSYS, as WASI and as a system call returns it.
WASI_ENOSYS = 52
SYSTEM_ENOSYS = -38


def address(value):
    """A pointer of the module: 32 bits without a sign."""
    return value & 0xFFFF_FFFF


def compiled(engine, path):
    """The module, compiled. That takes seconds, so the result is kept beside the module; another wasmtime refuses it."""
    kept = f"{path}.compiled"
    try:
        return wasmtime.Module.deserialize_file(engine, kept)
    except wasmtime.WasmtimeError:
        module = wasmtime.Module.from_file(engine, path)
    try:
        # Others may read or write it at the same time.
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(kept), delete=False) as file:
            file.write(module.serialize())
        os.rename(file.name, kept)
    except OSError:
        pass
    return module


class Module:
    """The module, as a transport of Perfetto's package: `send` a request, then `read` the answer.

    Of the system, it gets memory, clocks and standard error, and no files.
    """

    def __init__(self, path):
        engine = wasmtime.Engine()
        module = compiled(engine, path)
        self.store = wasmtime.Store(engine)
        self.answers = bytearray()
        system = [wasmtime.Func(self.store, wanted.type, self.system(wanted.name)) for wanted in module.imports]
        self.exports = wasmtime.Instance(self.store, module, system).exports(self.store)
        self.memory = self.exports["memory"]
        self.call("emscripten_stack_init")
        self.call("__wasm_call_ctors")
        kind = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        answer = wasmtime.Func(self.store, kind, lambda at, size: self.answers.extend(self.octets(at, size)))
        place = self.exports["__indirect_function_table"].grow(self.store, 1, answer)
        self.buffer = address(self.call("trace_processor_rpc_init", place, BUFFER))

    def call(self, name, *arguments):
        """Calls a function of the module."""
        return self.exports[name](self.store, *arguments)

    def octets(self, at, size):
        """Octets of the module's memory."""
        return self.memory.read(self.store, address(at), address(at) + size)

    def send(self, request):
        """Passes a request. The module answers before this returns."""
        for begin in range(0, len(request), BUFFER):
            part = request[begin : begin + BUFFER]
            self.memory.write(self.store, part, self.buffer)
            self.call("trace_processor_on_rpc_request", len(part))

    def read(self, size):
        """The next octets of the answer."""
        if len(self.answers) < size:
            raise ConnectionError("the trace processor has not answered")
        octets = bytes(self.answers[:size])
        del self.answers[:size]
        return octets

    def close(self):
        """Frees the module's memory."""
        self.store.close()

    def system(self, name):
        """The function of the system that the module calls by this name."""
        functions = {
            "emscripten_resize_heap": self.grow,
            "emscripten_get_heap_max": lambda: -PAGE,
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "clock_time_get": self.clock,
            "fd_write": self.write,
            # There are no variables of the environment, and there is no time zone.
            "environ_sizes_get": self.environment,
            "environ_get": lambda *_: 0,
            "_tzset_js": lambda *_: None,
            # Whether addresses of code can be told from offsets in the file: no.
            "emscripten_asm_const_int": lambda *_: 0,
            "HaveOffsetConverter": lambda: 0,
            # Says once that mprotect does nothing.
            "emscripten_err": lambda *_: None,
        }
        if name in functions:
            return functions[name]
        if name.startswith("__syscall_"):
            return lambda *_: SYSTEM_ENOSYS
        if name.startswith("fd_"):
            return lambda *_: WASI_ENOSYS

        def unknown(*_):
            raise RuntimeError(f"the trace processor has called {name}, which does not exist here")

        return unknown

    def grow(self, size):
        missing = -(-address(size) // PAGE) - self.memory.size(self.store)
        if missing > 0:
            self.memory.grow(self.store, missing)
        return 1

    def clock(self, _clock, _precision, result):
        self.memory.write(self.store, struct.pack("<Q", time.time_ns()), address(result))
        return 0

    def write(self, _file, parts, number, result):
        total = 0
        for part in range(number):
            at, size = struct.unpack("<II", self.octets(parts + 8 * part, 8))
            sys.stderr.write(self.octets(at, size).decode(errors="replace"))
            total += size
        self.memory.write(self.store, struct.pack("<I", total), address(result))
        return 0

    def environment(self, number, size):
        for result in (number, size):
            self.memory.write(self.store, bytes(4), address(result))
        return 0


class TraceProcessor(TraceProcessorRpc):
    """The trace processor of the file `module`, with a trace."""

    def __init__(self, module, trace):
        super().__init__(Module(module), ProtoFactory(PlatformDelegate()))
        with open(trace, "rb") as file:
            while chunk := file.read(BUFFER):
                self.request("TPM_APPEND_TRACE_DATA", "append_result", append_trace_data=chunk)
        self.request("TPM_FINALIZE_TRACE_DATA", "finalize_data_result")

    def request(self, method, result, **arguments):
        """Makes a request, and checks the part of the answer that is named `result`."""
        stream = self.protos.TraceProcessorRpcStream()
        number = self.protos.TraceProcessorRpc.TraceProcessorMethod.Value(method)
        stream.msg.add(request=number, **arguments)
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.ParseFromString(self._read_payload())
        self._check_envelope(answer)
        self.check(getattr(answer, result))

    def query(self, sql):
        """The rows of the answer, as tuples in the order of the query's columns."""
        result = self.execute_query(sql)
        self.check(result)
        return [tuple(vars(row).values()) for row in QueryResultIterator(result.column_names, result.batch)]

    def check(self, result):
        """Raises the error of an answer."""
        if result.error:
            raise PerfettoException(result.error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("trace")
    parser.add_argument("--since", type=int, default=-1, metavar="NS", help="only faults raised after this time")
    parser.add_argument("--nic", default="*", metavar="NAME", help="only faults of this NIC")
    arguments = parser.parse_args()
    processor = TraceProcessor(arguments.module, arguments.trace)
    mistakes = [f"{count} {what}" for count, what in processor.query(MISTAKES)]
    if mistakes:
        print(f"{arguments.trace}: {', '.join(mistakes)}", file=sys.stderr)
        return 1
    wanted = {"since": arguments.since, "nic": arguments.nic.replace("'", "''")}
    faults, tokens, stages = (processor.query(query.format(**wanted)) for query in (COUNT, TOKENS, STAGES))
    result = {
        "faults": faults[0][0],
        # SQL has integers with a sign.
        "tokens": [token % (1 << 64) for (token,) in tokens],
        "stages": [dict(zip(COLUMNS, stage, strict=True)) for stage in stages],
        "arrows": processor.query(ARROWS)[0][0],
    }
    json.dump(result, sys.stdout)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
