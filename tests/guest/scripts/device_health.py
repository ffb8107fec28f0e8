#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What devlink tells of the device's health.

	device_health reset	the device works; a reset under the driver stops it, and devlink recovers it
	device_health lost	the device is gone: waits until that is reported
	device_health fatal	the device stops with an injected fatal error; a new driver finds it well
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
    return shown["state"], shown["error"]


def wait_for_error():
    end = time.monotonic() + 30
    while health() != ("error", 1):
        assert time.monotonic() < end, "no error is reported"
        time.sleep(0.5)


def check_running():
    assert health() == ("healthy", 0)
    shown = devlink("health", "diagnose", *REPORTER)
    assert shown["state"] == "running" and shown["cause"] == "none"
    assert shown["fatal_code"] == 0 and shown["fatal_name"] == "none"
    # There is no dump of a device that works.
    refused = subprocess.run(["devlink", "health", "dump", "show", *REPORTER], stderr=subprocess.PIPE, text=True)
    assert refused.returncode != 0 and "running" in refused.stderr, refused
    # It is enabled, and beats.
    assert shown["status"] & 1, shown
    time.sleep(2.5)
    assert devlink("health", "diagnose", *REPORTER)["heartbeat"] > shown["heartbeat"]


def check_dead(*causes):
    wait_for_error()
    shown = devlink("health", "diagnose", *REPORTER)
    assert shown["state"] == "dead" and shown["cause"] in causes, shown
    assert shown["fatal_name"] == ("injected" if shown["cause"] == "fatal status" else "none"), shown
    # It was made when the device died.
    dump = devlink("health", "dump", "show", *REPORTER)
    assert dump["state"] == "dead" and dump["cause"] == shown["cause"], dump
    for queue in ("admin", "translation"):
        assert dump[queue]["stopped"] and dump[queue]["producer"] >= dump[queue]["consumer"] > 0, dump
    assert len(dump["event_queues"]) >= 3 and dump["doorbells_stored"] >= dump["doorbells_handled"] > 0
    assert dump["heartbeat"] > 0, dump


def recover():
    """What devlink says, if it refuses."""
    ended = subprocess.run(["devlink", "health", "recover", *REPORTER], stderr=subprocess.PIPE, text=True)
    print("recover", ended, flush=True)
    assert (ended.returncode != 0) == bool(ended.stderr), ended
    return ended.stderr


def recovered():
    """Whether there is an instance of a running device. While the driver is bound again there is none."""
    shown = subprocess.run(["devlink", "-j", "health", "diagnose", *REPORTER], stdout=subprocess.PIPE, text=True)
    return shown.returncode == 0 and json.loads(shown.stdout)["state"] == "running"


def check_recovery():
    # The driver does not do it by itself.
    time.sleep(2)
    assert health() == ("error", 1)
    assert recover() == ""
    end = time.monotonic() + 30
    while not recovered():
        assert time.monotonic() < end, "the device does not come back"
        time.sleep(0.5)
    check_running()
    # There is nothing to recover, so nothing is done.
    assert recover() == ""
    time.sleep(1)
    check_running()


def bind_again():
    (DRIVER / "unbind").write_text(SLOT)
    (DRIVER / "bind").write_text(SLOT)
    check_running()


if sys.argv[1:] == ["reset"]:
    check_running()
    pathlib.Path(f"/sys/bus/pci/devices/{SLOT}/reset").write_text("1")
    check_dead("function level reset")
    check_recovery()
elif sys.argv[1:] == ["fatal"]:
    check_dead("fatal status")
    bind_again()
elif sys.argv[1:] == ["lost"]:
    check_dead("no heartbeat", "registers do not answer", "command timeout")
    assert "does not answer" in recover()
else:
    sys.exit(2)
print("PASS")
