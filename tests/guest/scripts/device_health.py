#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What devlink tells of the device's health.

	device_health reset	the device works; a reset stops it, and the driver recovers it
	device_health manual	from now on the driver recovers the device by request only
	device_health fatal	the device stops with an injected fatal error; devlink recovers it
	device_health lost	the device is gone: waits until that is reported
"""
import json
import pathlib
import subprocess
import sys
import time

DRIVER = pathlib.Path("/sys/bus/pci/drivers/faultline")
[SLOT] = [entry.name for entry in DRIVER.glob("0000:*")]
HANDLE = "pci/" + SLOT
REPORTER = [HANDLE, "reporter", "fatal"]


def devlink(*words):
    text = subprocess.check_output(["devlink", "-j", *words], text=True)
    print(*words, text.strip(), flush=True)
    return json.loads(text)


def health():
    [shown] = devlink("health", "show", *REPORTER)["health"][HANDLE]
    assert shown["reporter"] == "fatal"
    return shown["state"], shown["error"], shown["recover"]


def wait_for_error():
    end = time.monotonic() + 100
    while health()[0] != "error":
        assert time.monotonic() < end, "no error is reported"
        time.sleep(0.5)


def set_auto_recover(value):
    subprocess.check_call(["devlink", "health", "set", *REPORTER, "auto_recover", value])


def check_running():
    assert health()[0] == "healthy"
    shown = devlink("health", "diagnose", *REPORTER)
    assert shown["state"] == "running" and shown["cause"] == "none"
    assert shown["fatal_code"] == 0 and shown["fatal_name"] == "none"
    # It is enabled, and beats.
    assert shown["status"] & 1, shown
    end = time.monotonic() + 30
    while devlink("health", "diagnose", *REPORTER)["heartbeat"] <= shown["heartbeat"]:
        assert time.monotonic() < end, "the heartbeat stands still"
        time.sleep(0.2)


def check_no_dump():
    # There is no dump of a device that works.
    refused = subprocess.run(["devlink", "health", "dump", "show", *REPORTER], stderr=subprocess.PIPE, text=True)
    assert refused.returncode != 0 and "running" in refused.stderr, refused


def check_dump(*causes):
    # It was made when the device died.
    dump = devlink("health", "dump", "show", *REPORTER)
    assert dump["state"] == "dead" and dump["cause"] in causes, dump
    assert dump["fatal_name"] == ("injected" if dump["fatal_code"] else "none"), dump
    for queue in ("admin", "translation"):
        assert dump[queue]["stopped"] and dump[queue]["producer"] >= dump[queue]["consumer"] > 0, dump
    assert len(dump["event_queues"]) >= 3 and dump["doorbells_stored"] >= dump["doorbells_handled"] > 0
    assert dump["heartbeat"] > 0, dump
    return dump


def recover():
    """What devlink says, if it refuses."""
    ended = subprocess.run(["devlink", "health", "recover", *REPORTER], stderr=subprocess.PIPE, text=True)
    print("recover", ended, flush=True)
    assert (ended.returncode != 0) == bool(ended.stderr), ended
    return ended.stderr


if sys.argv[1:] == ["reset"]:
    _, errors, recoveries = health()
    check_running()
    check_no_dump()
    # Returns when the device works again.
    pathlib.Path(f"/sys/bus/pci/devices/{SLOT}/reset").write_text("1")
    assert health() == ("healthy", errors + 1, recoveries + 1)
    check_running()
    check_dump("function level reset")
    # There is nothing to recover, so nothing is done.
    assert recover() == ""
    assert health() == ("healthy", errors + 1, recoveries + 1)
    subprocess.check_call(["devlink", "health", "dump", "clear", *REPORTER])
elif sys.argv[1:] == ["manual"]:
    set_auto_recover("false")
    # devlink keeps the first dump until it is cleared: that of a failure before this test.
    subprocess.check_call(["devlink", "health", "dump", "clear", *REPORTER])
elif sys.argv[1:] == ["fatal"]:
    wait_for_error()
    _, errors, recoveries = health()
    assert check_dump("fatal status", "device reports a fatal error")["fatal_code"] != 0
    # It stays so.
    time.sleep(3)
    assert health() == ("error", errors, recoveries)
    assert devlink("health", "diagnose", *REPORTER)["state"] == "dead"
    end = time.monotonic() + 10
    # The driver may still be bringing it down.
    while refusal := recover():
        assert "being recovered" in refusal and time.monotonic() < end, refusal
        time.sleep(0.5)
    assert health() == ("healthy", errors, recoveries + 1)
    check_running()
    set_auto_recover("true")
elif sys.argv[1:] == ["lost"]:
    wait_for_error()
    check_dump("no heartbeat", "registers do not answer", "command timeout")
    end = time.monotonic() + 30
    while "does not come back" not in recover():
        assert time.monotonic() < end, "the device comes back, or nothing is attempted"
        time.sleep(0.5)
    assert health()[0] == "error"
else:
    sys.exit(2)
print("PASS")
