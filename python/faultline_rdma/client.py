"""The control API of a process over its unix socket, with the standard library only."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlencode

from . import models

#: The control socket of the packaged service.
PACKAGED_SOCKET = "/run/faultline/control.sock"
#: Records of a timeline.
TIMELINE = 40


class ApiError(Exception):
    """A request was refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        #: Status of HTTP.
        self.status = status


class ScenarioFailed(AssertionError):
    """A rule of a scenario has not acted, or an expectation does not hold. The message has the timeline."""

    def __init__(self, verdict: models.VerdictView, timeline: str) -> None:
        checks = [
            f"  {'ok    ' if check['passed'] else 'FAILED'} {check['name']}: {check['found']}, expected {check['expected']}"
            for check in verdict["checks"]
        ]
        problems = [f"  problem: {problem}" for problem in verdict["problems"]]
        head = f"scenario {verdict['name']} has failed after {verdict['time_ns'] / 1e9:.3f} s"
        super().__init__("\n".join([head, *checks, *problems, "timeline:", timeline]))
        #: The verdict.
        self.verdict = verdict
        #: The last events of the NICs, one on each line.
        self.timeline = timeline


class _Connection(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError as error:
            self.sock.close()
            raise ConnectionError(
                f"can't connect to {self._path} ({error.strerror}): start faultline serve with --control {self._path}, "
                "or give the path of its control socket (FAULTLINE_CONTROL)"
            ) from error


class Faultline:
    """A process. `control`: its control socket; else FAULTLINE_CONTROL, else that of the packaged service."""

    def __init__(self, control: str | os.PathLike[str] | None = None, timeout: float = 20.0) -> None:
        chosen = control or os.environ.get("FAULTLINE_CONTROL") or PACKAGED_SOCKET
        #: Path of the control socket.
        self.control = os.fspath(chosen)
        #: Seconds to wait for each part of an answer.
        self.timeout = timeout

    def open(
        self, method: str, path: str, body: Any = None, *, patient: bool = False
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        """Sends a request whose answer is to be read from the response. The caller closes the connection. `patient`: the
        parts of the answer may take any time after its beginning."""
        connection = _Connection(self.control, self.timeout)
        try:
            headers = {"Connection": "close"}
            content = None
            if body is not None:
                content = json.dumps(body).encode()
                headers["Content-Type"] = "application/json"
            try:
                connection.request(method, path, content, headers)
            except BrokenPipeError:
                # The request was refused before all of it was read. The answer says why.
                pass
            # The connection forgets its socket when the answer has begun, because of `Connection: close`.
            sock = connection.sock
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError(response.status, _message(response.read()))
            if patient:
                sock.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection, response

    def read(self, method: str, path: str, body: Any = None) -> bytes:
        """The answer to a request."""
        connection, response = self.open(method, path, body)
        try:
            return response.read()
        finally:
            connection.close()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, which is JSON; `None`: it has no content."""
        answer = self.read(method, path, body)
        return json.loads(answer) if answer else None

    def version(self) -> models.VersionView:
        """The version of the process."""
        return cast(models.VersionView, self.request("GET", "/v1/version"))

    def nics(self) -> list[Nic]:
        """The NICs."""
        summaries: list[models.NicSummary] = self.request("GET", "/v1/nics")
        return [Nic(self, summary["name"]) for summary in summaries]

    def nic(self, name: str) -> Nic:
        """A NIC, which must exist."""
        nic = Nic(self, name)
        nic.show()
        return nic

    @contextmanager
    def added(self, name: str) -> Iterator[Nic]:
        """Adds a NIC of the configuration that is absent. `with` removes it."""
        self.request("POST", "/v1/nics", {"name": name})
        nic = Nic(self, name)
        try:
            yield nic
        finally:
            nic.remove()

    def metrics(self) -> str:
        """The metrics for Prometheus."""
        return self.read("GET", "/metrics").decode()

    def rules(self) -> list[models.LiveRuleView]:
        """The live rules."""
        return cast(list[models.LiveRuleView], self.request("GET", "/v1/rules"))

    def rule(
        self,
        rule: str | None = None,
        *,
        on: Mapping[str, Any] | None = None,
        do: Mapping[str, Any] | None = None,
        nic: str | None = None,
        port: str | None = None,
        name: str | None = None,
        count: int | None = None,
        seconds: float | None = None,
    ) -> LiveRule:
        """Starts a live rule: TOML, or `on` and `do` in the language of scenarios.

        `with` removes it at the end. `count`: it acts at most so often at each NIC. `seconds`: it ends after this time.
        """
        table = {"name": name, "nic": nic, "port": port, "on": on, "do": do}
        given = {key: value for key, value in table.items() if value is not None}
        if rule is not None and given:
            raise TypeError("a rule is given as TOML or by its keys, not both")
        start: dict[str, Any] = {"rule": given if rule is None else rule}
        if count is not None:
            start["count"] = count
        if seconds is not None:
            start["for_ms"] = round(seconds * 1000)
        return LiveRule(self, self.request("POST", "/v1/rules", start))

    def signal(self, name: str) -> None:
        """Triggers the rules that wait for this name."""
        self.request("POST", "/v1/scenario/signals", {"name": name})

    def scenario(
        self, file: str | os.PathLike[str], *, text: str | None = None, seed: int | None = None
    ) -> Scenario:
        """Starts a scenario: a file, or a text with the file's name.

        `with` stops it at the end, and raises `ScenarioFailed` if the verdict is not good.
        """
        content = Path(file).read_text() if text is None else text
        start: dict[str, Any] = {"name": os.fspath(file), "text": content}
        if seed is not None:
            start["seed"] = seed
        began = self._now()
        self.request("POST", "/v1/scenario", start)
        return Scenario(self, began)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops all NICs and the device clock."""
        self.request("PUT", "/v1/engine", {"paused": True})
        try:
            yield
        finally:
            self.request("PUT", "/v1/engine", {"paused": False})

    def step(self, passes: int = 1, advance: float = 0.0) -> models.Stepped:
        """In a pause: moves the device clock by `advance` seconds, then executes passes."""
        step = {"passes": passes, "advance_us": round(advance * 1e6)}
        return cast(models.Stepped, self.request("POST", "/v1/engine/step", step))

    def capture(
        self,
        file: str | os.PathLike[str],
        *,
        nic: str | None = None,
        qpn: int | None = None,
        opcode: str | None = None,
        snaplen: int | None = None,
        count: int | None = None,
    ) -> Capture:
        """Captures frames into a file (pcapng). `with` ends it."""
        query = {"nic": nic, "qpn": qpn, "opcode": opcode, "snaplen": snaplen, "count": count}
        return Capture(self, Path(file), {key: str(value) for key, value in query.items() if value is not None})

    def trace(self) -> tuple[models.TraceHeader, list[dict[str, Any]]]:
        """The trace: its header, and its records, the oldest first."""
        lines = self.read("GET", "/v1/trace/snapshot").splitlines()
        header, *records = [json.loads(line) for line in lines]
        return header, records

    def timeline(self, since: int = 0, most: int = TIMELINE) -> str:
        """The last events of the NICs, one on each line. `since`: nanoseconds of the device clock."""
        header, records = self.trace()
        records = [record for record in records if record["at"] >= since]
        left_out = len(records) - most
        lines = [f"  ({left_out} earlier records)"] if left_out > 0 else []
        lines += [_event(header["nics"], record) for record in records[-most:]]
        return "\n".join(lines) or "  (no record: traces are off, or nothing has happened)"

    def _now(self) -> int:
        """Nanoseconds of the device clock."""
        header = self.read("GET", "/v1/trace?limit=1").splitlines()[0]
        return int(json.loads(header)["now"])


class Nic:
    """A NIC of a process."""

    def __init__(self, faultline: Faultline, name: str) -> None:
        self.faultline = faultline
        #: Its name.
        self.name = name
        self._path = f"/v1/nics/{quote(name, safe='')}"

    def show(self) -> models.NicView:
        """State, configuration, number of objects."""
        return cast(models.NicView, self.faultline.request("GET", self._path))

    def remove(self) -> None:
        """Removes it: its client is disconnected. It can be added again."""
        self.faultline.request("DELETE", self._path)

    def counters(self) -> dict[str, int]:
        """All counters, by name."""
        return cast(dict[str, int], self.faultline.request("GET", f"{self._path}/counters"))

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """A table that has at the end of `with` by how much each counter has increased."""
        before = self.counters()
        increase: dict[str, int] = {}
        yield increase
        increase.update({name: value - before.get(name, 0) for name, value in self.counters().items()})

    def faults(self) -> list[models.FaultView]:
        """Page faults that the driver has not answered, the oldest first."""
        return cast(list[models.FaultView], self.faultline.request("GET", f"{self._path}/faults"))

    def queue_pairs(self) -> list[models.QueuePairView]:
        """The queue pairs."""
        return cast(list[models.QueuePairView], self._all("queue-pairs"))

    def regions(self) -> list[models.RegionView]:
        """The memory keys."""
        return cast(list[models.RegionView], self._all("regions"))

    def link(self) -> models.LinkView:
        """The link."""
        return cast(models.LinkView, self.faultline.request("GET", f"{self._path}/link"))

    def set_link(self, *, up: bool | None = None, mtu: int | None = None) -> models.LinkView:
        """Takes the link up or down, or sets its MTU (0: not limited)."""
        change = {"up": up, "mtu": mtu}
        body = {key: value for key, value in change.items() if value is not None}
        return cast(models.LinkView, self.faultline.request("PUT", f"{self._path}/link", body))

    def set_fault_policy(self, qpn: int, policy: models.Policy) -> None:
        """Sets the fault policy of a queue pair."""
        path = f"{self._path}/queue-pairs/{qpn}/fault-policy"
        self.faultline.request("PUT", path, {"policy": policy})

    def act(self, action: models.Action) -> None:
        """Does something to the NIC, such as `{"action": "reset"}`."""
        self.faultline.request("POST", f"{self._path}/actions", action)

    def rule(
        self,
        *,
        on: Mapping[str, Any],
        do: Mapping[str, Any],
        name: str | None = None,
        count: int | None = None,
        seconds: float | None = None,
    ) -> LiveRule:
        """Starts a live rule on this NIC: see `Faultline.rule`."""
        return self.faultline.rule(on=on, do=do, nic=self.name, name=name, count=count, seconds=seconds)

    def capture(self, file: str | os.PathLike[str], **query: Any) -> Capture:
        """Captures frames of this NIC: see `Faultline.capture`."""
        return self.faultline.capture(file, nic=self.name, **query)

    def _all(self, kind: str) -> list[Any]:
        items: list[Any] = []
        first: int | None = 0
        while first is not None:
            page = self.faultline.request("GET", f"{self._path}/{kind}?from={first}")
            items += page["items"]
            first = page["next"]
        return items


class LiveRule:
    """A live rule, which `with` removes."""

    def __init__(self, faultline: Faultline, view: models.LiveRuleView) -> None:
        self.faultline = faultline
        #: Its id.
        self.id = view["id"]
        self._removed: models.LiveRuleView | None = None

    def show(self) -> models.LiveRuleView:
        """Its state; after its end, the last one."""
        if self._removed is not None:
            return self._removed
        for rule in self.faultline.rules():
            if rule["id"] == self.id:
                return rule
        raise LookupError(f"live rule {self.id} was removed by another client")

    @property
    def acted(self) -> int:
        """How often it has acted."""
        return self.show()["acted"]

    def wait(self, times: int = 1, timeout: float = 10.0) -> None:
        """Waits until it has acted as often."""
        end = time.monotonic() + timeout
        while (view := self.show())["acted"] < times:
            if time.monotonic() >= end:
                raise TimeoutError(
                    f"{view['name']} has acted {view['acted']} times in {timeout} s, and not {times} times"
                )
            time.sleep(0.01)

    def remove(self) -> models.LiveRuleView:
        """Removes it: what it has changed is as before. Returns its last state."""
        if self._removed is None:
            self._removed = self.faultline.request("DELETE", f"/v1/rules/{self.id}")
        return cast(models.LiveRuleView, self._removed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.remove()
        except ApiError as error:
            # Another client has removed it.
            if error.status != 404:
                raise


class Scenario:
    """A scenario that runs. `with` stops it, and raises `ScenarioFailed` if its verdict is not good."""

    def __init__(self, faultline: Faultline, began: int) -> None:
        self.faultline = faultline
        self._began = began

    def show(self) -> models.ScenarioView:
        """How often its rules have acted."""
        return cast(models.ScenarioView, self.faultline.request("GET", "/v1/scenario"))

    def stop(self) -> models.VerdictView:
        """Ends it. Returns the verdict, whatever it is."""
        return cast(models.VerdictView, self.faultline.request("DELETE", "/v1/scenario"))

    def check(self) -> models.VerdictView:
        """Ends it. Raises `ScenarioFailed` if the verdict is not good."""
        verdict = self.stop()
        if not verdict["passed"]:
            raise ScenarioFailed(verdict, self.faultline.timeline(self._began))
        return verdict

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # The failure inside of `with` is the first cause.
        if kind is None:
            self.check()
        else:
            self.stop()


class Capture:
    """A capture into a file, which `with` ends."""

    def __init__(self, faultline: Faultline, file: Path, query: dict[str, str]) -> None:
        self.faultline = faultline
        #: The file.
        self.file = file
        path = f"/v1/capture?{urlencode(query)}" if query else "/v1/capture"
        # Frames come when there are some.
        self._connection, self._response = faultline.open("GET", path, patient=True)
        try:
            self._output = file.open("wb")
        except BaseException:
            self._response.close()
            self._connection.close()
            raise
        self._id = int(self._response.headers["Faultline-Capture"])
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._copy, name="faultline capture", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        try:
            while part := self._response.read1(1 << 16):
                self._output.write(part)
        except (OSError, http.client.HTTPException) as error:
            self._error = error
        finally:
            self._output.close()
            self._response.close()
            self._connection.close()

    def stop(self) -> Path:
        """Ends it. The file is complete then."""
        try:
            self.faultline.request("DELETE", f"/v1/captures/{self._id}")
        except ApiError as error:
            # It has ended by itself, by its count.
            if error.status != 404:
                raise
        self._thread.join(self.faultline.timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"capture {self._id} has not ended in {self.faultline.timeout} s")
        if self._error is not None:
            raise self._error
        return self.file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _message(body: bytes) -> str:
    """The message of a refused request."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def _event(nics: list[str], record: dict[str, Any]) -> str:
    """A record of the trace as a line."""
    number = record["nic"]
    nic = nics[number] if number < len(nics) else str(number)
    # A kind, or a kind with its fields. Those of diagnostics are in `Nic`.
    event = record["event"]
    if isinstance(event, dict) and "Nic" in event:
        event = event["Nic"]
    kind, fields = next(iter(event.items())) if isinstance(event, dict) else (event, {})
    text = " ".join(f"{key}={value}" for key, value in fields.items()) if isinstance(fields, dict) else fields
    return f"  {record['at'] / 1e6:12.3f} ms  {nic}  {kind} {text}".rstrip()
