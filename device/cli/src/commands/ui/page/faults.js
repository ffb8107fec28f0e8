// Page faults: those without an answer, and where the time of the slowest has gone.
const STAGES = {
  record: "#6a51a3",
  interrupt: "#1f6fb2",
  wait: "#9a5b13",
  map: "#2c7a34",
  post: "#b3225f",
  data: "#4a5560",
};
const BAR = 280;

class FaultsView {
  constructor(isLive) {
    this.name = "Page faults";
    this.isLive = isLive;
    this.summary = el("p", { role: "status" });
    this.slowest = new Table("Slowest page faults", [
      text("NIC", (row) => row.nic),
      text("Token", (row) => row.token, { text: (row) => hex(row.token) }),
      text("QPN", (row) => row.access?.qpn, { number: true }),
      text("Address", (row) => row.access?.va, { text: (row) => hex(row.access?.va) }),
      text("Process", (row) => row.access?.process?.join(" ")),
      { title: "Stages", fixed: true, value: () => null, text: (row) => this.bar(row) },
      number("Total", (row) => stage(row, "total"), duration),
      ...Object.keys(STAGES).map((name) => number(name.replace(/^./, (letter) => letter.toUpperCase()), (row) => stage(row, name), duration)),
      number("RNR NAKs", (row) => row.rnr_naks),
      number("Raised at (s)", (row) => row.raised, clock),
    ], { sort: { at: 6, down: true }, filter: false });
    this.stages = new Table("Time of each stage", [
      text("Stage", (row) => row.stage),
      number("Faults", (row) => row.count),
      ...[["Median", "p50"], ["90 %", "p90"], ["99 %", "p99"], ["99.9 %", "p999"], ["Longest", "max"]].map(([title, name]) =>
        number(title, (row) => row.count > 0 ? row[name] : null, duration)),
    ], { filter: false });
    const legend = el("ul", { class: "legend" }, ...Object.entries(STAGES).map(([name, colour]) =>
      el("li", {}, svg("svg", { width: 14, height: 14, "aria-hidden": "true" }, svg("rect", { width: 14, height: 14, fill: colour })), name)));
    this.element = el("div", {}, this.summary, legend, this.slowest.element, this.stages.element);
    if (isLive) {
      this.waiting = new Table("Page faults without an answer", [
        number("Age", (row) => row.age_ms * 1e6, duration),
        text("NIC", (row) => row.nic),
        text("Token", (row) => row.token, { text: (row) => hex(row.token) }),
        text("QPN", (row) => row.qpn, { number: true }),
        number("Waiters", (row) => row.waiters),
        text("Address", (row) => row.va, { text: (row) => hex(row.va) }),
        number("Pages", (row) => row.pages),
        text("Key", (row) => row.key, { text: (row) => hex(row.key) }),
        text("Access", (row) => row.write ? "write" : "read"),
        text("Process", owner),
      ]);
      this.summary.after(this.waiting.element);
    }
  }

  draw(view) {
    const { outcomes, slowest, stages } = view.faults;
    const most = Math.max(1, ...slowest.map((fault) => stage(fault, "total") ?? 0));
    this.most = most;
    const counts = ["resumed", "failed", "expired", "cancelled", "reset", "in_flight"];
    const said = counts.filter((name) => outcomes[name] > 0).map((name) => `${outcomes[name]} ${name.replace("_", " ")}`);
    const summary = `${outcomes.all} page faults${this.isLive ? " in the newest records" : ""}${said.length > 0 ? `: ${said.join(", ")}` : ""}.` +
      (view.skipped > 0 ? ` ${si(view.skipped)} records came faster than they could be read, and are not counted.` : "");
    if (this.summary.textContent !== summary) this.summary.textContent = summary;
    this.slowest.update(slowest);
    this.stages.update(stages);
    if (this.isLive) this.waiting.update(view.rows.faults);
  }

  bar(fault) {
    const marks = [];
    let at = 0;
    for (const [name, colour] of Object.entries(STAGES)) {
      const ns = stage(fault, name) ?? 0;
      const width = (ns / this.most) * BAR;
      if (ns > 0) {
        marks.push(svg("rect", { class: "stage", "data-stage": name, x: at, y: 2, width: Math.max(width, 1), height: 12, fill: colour },
          svg("title", {}, `${name} ${duration(ns)}`)));
      }
      at += width;
    }
    return svg("svg", { width: BAR + 6, height: 16, "aria-hidden": "true" }, ...marks);
  }
}

function stage(fault, name) {
  const found = fault.stages.find(([stage]) => stage === name);
  return found ? Number(found[1]) : null;
}
