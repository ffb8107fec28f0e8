// The diagnostics of the NICs.
class EventsView {
  constructor() {
    this.name = "Events";
    this.nic = el("select", { onchange: () => this.show() }, el("option", { value: "" }, "all"));
    this.kind = el("select", { onchange: () => this.show() }, el("option", { value: "" }, "all"));
    this.note = el("p");
    this.table = new Table("Events", [
      text("Time (s)", (row) => row.at, { text: (row) => clock(row.at), number: true }),
      text("NIC", (row) => row.nic),
      text("Kind", (row) => row.kind),
      text("Details", (row) => details(row.fields), { wide: true }),
      text("Process", (row) => row.program),
    ]);
    this.element = el("div", {},
      el("div", { class: "bar" }, el("label", {}, "NIC", this.nic), el("label", {}, "Kind of event", this.kind)),
      this.note, this.table.element);
  }

  draw(view) {
    this.events = view.events;
    this.note.textContent = view.older_events > 0 ? `${view.older_events} older events of the recording are not in this page.` : "";
    for (const [select, name] of [[this.nic, "nic"], [this.kind, "kind"]]) {
      const known = new Set([...select.options].map((option) => option.value));
      const values = [...new Set(this.events.map((event) => event[name]))].filter((value) => !known.has(value)).sort();
      select.append(...values.map((value) => el("option", { value }, value)));
    }
    this.show();
  }

  show() {
    const wanted = (event) => (!this.nic.value || event.nic === this.nic.value) && (!this.kind.value || event.kind === this.kind.value);
    this.table.update(this.events.filter(wanted));
  }
}

// Fields with their names. Addresses and keys are hexadecimal, as everywhere.
function details(fields) {
  const shown = (name, value) => {
    if (value !== null && typeof value === "object") return `{${details(value)}}`;
    return ["va", "key", "token"].includes(name) && typeof value !== "string" ? hex(value) : String(value);
  };
  return Object.entries(fields).map(([name, value]) => `${name}=${shown(name, value)}`).join(" ");
}
