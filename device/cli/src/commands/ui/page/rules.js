// The rules of the running scenario, when they have acted, and live rules.
const FIRINGS = 100;

class RulesView {
  constructor() {
    this.name = "Rules";
    this.seen = new Map();
    this.firings = [];
    this.rows = null;
    this.summary = el("p", { role: "status" });
    this.problems = el("ul");
    this.table = new Table("Rules and timed actions", [
      text("Rule", (row) => row.name),
      number("Acted", (row) => row.fired, orDash),
      number("In the last sample", (row) => row.more, (more) => more > 0 ? `+${more}` : "-"),
      text("Expected", (row) => row.expected),
      text("Last seen to act at (s)", (row) => row.at, { number: true }),
    ], { filter: false, trouble: (row) => row.more > 0 });
    this.log = new Table("Actions of rules, newest first", [
      text("Time (s)", (row) => row.at, { number: true }),
      text("Rule", (row) => row.name),
      number("Times", (row) => row.more, orDash),
    ]);
    this.live = new Table("Live rules", [
      number("Id", (row) => row.id, orDash),
      text("Rule", (row) => row.rule, { wide: true }),
      text("State", (row) => row.state),
      number("Acted", (row) => row.acted, orDash),
      number("Matched", (row) => row.matched, orDash),
      text("Nearest miss", (row) => row.nearest && `${row.nearest.keys}: ${row.nearest.count}`),
      number("Runs for", (row) => row.running_ns, duration),
      number("Ends in", (row) => row.left_ns, duration),
    ], { filter: false });
    this.element = el("div", {}, this.summary, this.problems, this.table.element, this.log.element, this.live.element);
  }

  // Counts are compared also while another view is shown.
  observe(view) {
    const scenario = view.scenario;
    if (!scenario || scenario.name !== this.scenario || scenario.running_ns < this.running) {
      this.seen.clear();
      this.firings = scenario ? [] : this.firings;
    }
    this.scenario = scenario?.name;
    this.running = scenario?.running_ns ?? 0;
    // The page does not know when a rule acted before its first sample.
    const isFirst = this.rows === null;
    this.rows = (scenario?.rules ?? []).map((rule, place) => {
      const before = this.seen.get(place) ?? { fired: isFirst ? rule.fired : 0, at: null };
      const more = rule.fired - before.fired;
      const at = more > 0 ? clock(scenario.running_ns) : before.at;
      this.seen.set(place, { fired: rule.fired, at });
      if (more > 0) this.firings.unshift({ name: rule.name, more, at });
      return { ...rule, more, at };
    });
    this.firings.length = Math.min(this.firings.length, FIRINGS);
  }

  draw(view) {
    const scenario = view.scenario;
    const said = scenario
      ? `${scenario.name}, ${scenario.ended ? "has ended" : "runs"} for ${clock(scenario.running_ns)} s of the device clock`
      : "No scenario runs.";
    if (this.summary.textContent !== said) this.summary.textContent = said;
    const tasks = (scenario?.tasks ?? []).map((task) => `${task.action} at ${task.nic} waits for the runner`);
    const problems = [...(scenario?.problems ?? []), ...tasks, ...view.rules.flatMap((rule) => rule.problems)];
    this.problems.replaceChildren(...problems.map((problem) => el("li", {}, problem)));
    this.table.update(this.rows ?? []);
    this.log.update(this.firings);
    this.live.update(view.rules);
  }
}
