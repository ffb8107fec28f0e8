"""A client of a running Faultline process: counters, faults, live rules, captures, scenarios."""

from .client import ApiError, Capture, Faultline, LiveRule, Nic, Scenario, ScenarioFailed

__all__ = ["ApiError", "Capture", "Faultline", "LiveRule", "Nic", "Scenario", "ScenarioFailed"]
