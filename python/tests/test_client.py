"""The client on a real process: `python3 -m unittest discover -s python/tests`.

The process is that of FAULTLINE_CONTROL, and has the NICs `a` and `b` without clients.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PYTHON))

from faultline_rdma import ApiError, Faultline, ScenarioFailed  # noqa: E402

DOWN = {"port_down": {}}
SCENARIO = """
[[rule]]
nic = "a"
on = { signal = "go" }
do = { reset = {} }
"""
FAILING = """
[[rule]]
nic = "a"
on = { doorbell = "sq" }
do = { drop = {} }
"""


class Models(unittest.TestCase):
    """The generated file."""

    def test_the_models_are_those_of_the_description(self) -> None:
        generator = str(PYTHON / "generate_models.py")
        subprocess.run([sys.executable, generator, "--check"], check=True)


class Client(unittest.TestCase):
    """The client."""

    def setUp(self) -> None:
        self.faultline = Faultline()
        self.nic = self.faultline.nic("a")

    def await_link(self, up: bool) -> None:
        end = time.monotonic() + 20
        while self.nic.link()["up"] != up:
            self.assertLess(time.monotonic(), end, f"the link of a is never {'up' if up else 'down'}")
            time.sleep(0.01)

    def test_nics_and_their_objects(self) -> None:
        self.assertEqual([nic.name for nic in self.faultline.nics()], ["a", "b"])
        self.assertEqual(self.nic.show()["name"], "a")
        self.assertEqual(self.nic.faults(), [])
        self.assertEqual(self.nic.queue_pairs(), [])
        self.assertEqual(self.nic.regions(), [])
        self.assertEqual(self.faultline.version()["api"], "1")
        self.assertIn('nic="a"', self.faultline.metrics())
        with self.nic.counted() as increase:
            pass
        self.assertEqual(increase["tx_packets"], 0)
        self.assertEqual(increase.keys(), self.nic.counters().keys())

    def test_a_rule_acts_and_is_removed(self) -> None:
        with self.nic.rule(on={"signal": "down"}, do=DOWN, name="unplugged") as rule:
            self.assertEqual(rule.acted, 0)
            self.faultline.signal("down")
            rule.wait()
            self.await_link(False)
            self.assertEqual(rule.show()["name"], "unplugged")
        self.assertTrue(self.nic.link()["up"])
        self.assertEqual(rule.show()["acted"], 1)
        self.assertEqual(self.faultline.rules(), [])

    def test_a_rule_as_text_that_ends_by_itself(self) -> None:
        text = "nic = 'a' on = { signal = 'down' } do = { port_down = {} }"
        with self.faultline.rule(text, seconds=0.05) as rule:
            self.faultline.signal("down")
            self.await_link(True)
            end = time.monotonic() + 20
            while rule.show()["state"] != "ended":
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
        with self.faultline.rule(text) as rule, self.assertRaises(TimeoutError):
            rule.wait(timeout=0)
        with self.assertRaises(TypeError):
            self.faultline.rule(text, nic="a")

    def test_a_nic_is_removed_and_added(self) -> None:
        def present() -> list[bool]:
            return [nic["present"] for nic in self.faultline.request("GET", "/v1/nics")]

        self.nic.remove()
        self.assertEqual(present(), [False, True])
        with self.assertRaises(ZeroDivisionError), self.faultline.added("a") as nic:
            self.assertEqual(present(), [True, True])
            self.assertEqual(nic.name, "a")
            raise ZeroDivisionError
        self.assertEqual(present(), [False, True])
        self.faultline.request("POST", "/v1/nics", {"name": "a"})

    def test_what_is_refused_says_why(self) -> None:
        with self.assertRaisesRegex(ApiError, "did you mean `ACK`"):
            self.nic.rule(on={"opcode": "ACKK"}, do={"drop": {}})
        with self.assertRaisesRegex(ApiError, "the NICs are: a, b") as refused:
            self.faultline.nic("c")
        self.assertEqual(refused.exception.status, 404)
        with self.assertRaisesRegex(ConnectionError, "start faultline serve"):
            Faultline("/nonexistent/socket").version()

    def test_a_scenario_is_an_assertion(self) -> None:
        with self.faultline.scenario("good.toml", text=SCENARIO) as run:
            self.faultline.signal("go")
            self.assertEqual(run.show()["rules"][0]["fired"], 1)
        with self.assertRaises(ScenarioFailed) as failed:
            with self.faultline.scenario("bad.toml", text=SCENARIO + FAILING):
                self.faultline.signal("go")
        message = str(failed.exception)
        self.assertRegex(message, r"FAILED rule\[1\]: fired 0 times, expected 1\.\.")
        self.assertRegex(message, r"\n +[0-9.]+ ms  a  Reset")
        with self.assertRaises(ZeroDivisionError):
            with self.faultline.scenario("x.toml", text=SCENARIO):
                raise ZeroDivisionError
        with self.assertRaisesRegex(ApiError, "no scenario runs"):
            self.faultline.request("GET", "/v1/scenario")

    def test_a_capture_is_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "a.pcapng"
            with self.nic.capture(file, count=5) as capture:
                self.assertEqual(len(self.faultline.request("GET", "/v1/captures")), 1)
            self.assertEqual(capture.file.read_bytes()[:4], b"\x0a\x0d\x0d\x0a")
            self.assertEqual(self.faultline.request("GET", "/v1/captures"), [])
            with self.assertRaises(ApiError):
                self.faultline.nic("a").capture(file, opcode="ACKK")
            self.assertNotEqual(file.read_bytes(), b"")

    def test_a_capture_waits_for_frames(self) -> None:
        nic = Faultline(timeout=2).nic("a")
        with tempfile.TemporaryDirectory() as folder:
            with nic.capture(Path(folder) / "a.pcapng"):
                time.sleep(3)
                self.assertEqual(len(self.faultline.request("GET", "/v1/captures")), 1)

    def test_a_rule_that_another_client_has_removed(self) -> None:
        with self.nic.rule(on={"signal": "never"}, do={"port_down": {}}) as rule:
            self.faultline.request("DELETE", f"/v1/rules/{rule.id}")

    def test_a_paused_process_is_stepped(self) -> None:
        with self.faultline.paused():
            self.assertTrue(self.faultline.request("GET", "/v1/engine")["paused"])
            self.assertEqual(self.faultline.step(2, advance=0.001)["passes"], 2)
        self.assertFalse(self.faultline.request("GET", "/v1/engine")["paused"])


PYTEST = """
def test_link(faultline, nic):
    assert [nic.name for nic in faultline.nics()] == ["a", "b"]
    nic.rule(on={"signal": "never"}, do={"port_down": {}})
"""


@unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
class Plugin(unittest.TestCase):
    """The plugin of pytest."""

    def run_pytest(self, *options: str, control: str | None) -> str:
        environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
        # An installed package registers the plugin a second time.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment.pop("FAULTLINE_CONTROL", None)
        arguments = ["-p", "faultline_rdma.pytest_plugin", "-p", "no:cacheprovider", "-rs", *options]
        if control is not None:
            arguments += ["--faultline-control", control]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "test_it.py").write_text(PYTEST)
            command = [sys.executable, "-m", "pytest", *arguments, folder]
            return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    def test_the_fixtures_give_a_process_and_remove_its_rules(self) -> None:
        faultline = Faultline()
        self.assertIn("1 passed", self.run_pytest(control=faultline.control))
        self.assertEqual(faultline.rules(), [])

    def test_tests_without_a_process_are_skipped_with_a_reason(self) -> None:
        shown = self.run_pytest(control=None)
        self.assertIn("1 skipped", shown)
        self.assertIn("--faultline-control SOCKET", shown)


if __name__ == "__main__":
    unittest.main()
