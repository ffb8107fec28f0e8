// The fabric: NICs on their engines, ports, links; and the queue pairs.
const BOX = { width: 250, height: 62, gap: 12 };

class FabricView {
  constructor(isLive) {
    this.name = "Fabric";
    this.isLive = isLive;
    this.picture = el("div", { class: "scroll" });
    this.nics = new Table("NICs", isLive ? LIVE_NICS : RUN_NICS, { filter: false, trouble: (row) => row.link_up === false });
    this.element = el("div", {}, this.picture, this.nics.element);
    if (isLive) {
      this.engines = new Table("Engine threads", ENGINES, { filter: false });
      this.ports = new Table("External ports", PORTS, { filter: false });
      this.links = new Table("Modelled links", LINKS, { filter: false });
      this.element.append(this.engines.element, this.ports.element, this.links.element);
    }
  }

  draw(view) {
    if (!this.isLive) {
      this.picture.replaceChildren(this.draws([{ name: "", nics: view.nics }], []));
      this.nics.update(view.nics);
      return;
    }
    const details = new Map(view.nics.map((nic) => [nic.name, nic]));
    const nics = view.rows.nics.map((row) => ({ ...details.get(row.name), ...row }));
    const byName = new Map(nics.map((nic) => [nic.name, nic]));
    const engines = view.engine.threads.map((thread) => ({
      ...thread,
      name: thread.name,
      nics: thread.nics.map((name) => byName.get(name)).filter(Boolean),
    }));
    this.picture.replaceChildren(this.draws(engines, view.ports));
    this.nics.update(nics);
    this.engines.update(view.engine.threads);
    this.ports.update(view.ports);
    this.links.update(view.links);
  }

  // A picture: engines with their NICs at the left, the switch, ports at the right.
  draws(engines, ports) {
    const marks = [];
    const left = 10;
    const right = left + BOX.width + 160;
    let top = 10;
    const nicText = (nic) => this.isLive
      ? [`${nic.state}, link ${nic.link_up ? "up" : "down"}${nic.stalled ? ", stalled" : ""}`,
        `sent ${si(nic.tx_bytes_per_s, "B/s")}, received ${si(nic.rx_bytes_per_s, "B/s")}`]
      : [`sent ${si(nic.tx_packets)} packets, ${si(nic.tx_bytes, "B")}`, `received ${si(nic.rx_packets)} packets, ${si(nic.rx_bytes, "B")}`];
    const box = (x, y, title, lines, isUp) => marks.push(
      svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 4, fill: isUp ? "#eaf2fb" : "#fbe4e6", stroke: "#4a5560" }),
      svg("text", { x: x + 8, y: y + 18, class: "strong" }, title),
      ...lines.map((line, at) => svg("text", { x: x + 8, y: y + 35 + 16 * at }, line)));
    const wire = (x, y, rate, isUp) => marks.push(svg("line", {
      x1: x, y1: y, x2: x + 60, y2: y,
      stroke: isUp ? "#0b4f9e" : "#a40e26",
      "stroke-width": 1 + Math.log10(1 + Number(rate ?? 0)) / 2,
      "stroke-dasharray": isUp ? null : "4 4",
    }));
    for (const engine of engines) {
      if (engine.name) {
        marks.push(svg("text", { x: left, y: top + 12, class: "strong" }, `engine ${engine.name}`));
        top += 20;
      }
      for (const nic of engine.nics) {
        const isUp = nic.link_up !== false;
        box(left, top, nic.name, nicText(nic), isUp);
        wire(left + BOX.width, top + BOX.height / 2, nic.tx_bytes_per_s ?? nic.tx_bytes, isUp);
        top += BOX.height + BOX.gap;
      }
    }
    let below = 10;
    for (const port of ports) {
      const lost = Object.values(port.dropped).reduce((sum, count) => sum + Number(count), 0);
      box(right, below, port.name, [`${port.connected ? "connected" : "no peer"}, ${si(lost)} frames dropped`,
        `sent ${si(port.tx_frames)}, received ${si(port.rx_frames)} frames`], port.connected);
      wire(right - 60, below + BOX.height / 2, port.tx_bytes, port.connected);
      below += BOX.height + BOX.gap;
    }
    const height = Math.max(top, below, 60);
    const middle = left + BOX.width + 60;
    marks.push(
      svg("rect", { x: middle, y: 10, width: 40, height: height - 20, rx: 4, fill: "#f0f2f4", stroke: "#4a5560" }),
      svg("text", { x: middle + 20, y: height / 2, class: "strong", "text-anchor": "middle", transform: `rotate(-90 ${middle + 20} ${height / 2})` }, "switch"));
    const width = ports.length > 0 ? right + BOX.width + 10 : middle + 50;
    const label = `The fabric: ${engines.reduce((sum, engine) => sum + engine.nics.length, 0)} NICs, ${ports.length} external ports. The tables below have the same values.`;
    return svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...marks);
  }
}

const dropped = (nic) => nic.link ? nic.link.too_long + nic.link.tx_dropped + nic.link.rx_dropped + nic.link.vlan_dropped : null;

const LIVE_NICS = [
  text("NIC", (row) => row.name),
  text("State", (row) => row.state),
  text("Link", (row) => row.link_up ? "up" : "down"),
  text("Client", (row) => row.client ? `${row.client.program ?? "?"} ${row.client.pid ?? ""}` : "none"),
  number("Faults waiting", (row) => row.faults_in_flight),
  number("Faults/s", (row) => row.page_faults_per_s),
  number("Sent packets/s", (row) => row.tx_packets_per_s),
  number("Received packets/s", (row) => row.rx_packets_per_s),
  number("Sent B/s", (row) => row.tx_bytes_per_s),
  number("Received B/s", (row) => row.rx_bytes_per_s),
  number("RNR NAKs sent/s", (row) => row.rnr_naks_sent_per_s),
  number("Sent again/s", (row) => row.retransmitted_packets_per_s),
  number("Dropped", dropped),
  number("Queue pairs", (row) => row.queue_pairs),
  number("Keys", (row) => row.memory_keys),
];
const RUN_NICS = [
  text("NIC", (row) => row.name),
  number("Sent packets", (row) => row.tx_packets),
  number("Received packets", (row) => row.rx_packets),
  number("Sent bytes", (row) => row.tx_bytes),
  number("Received bytes", (row) => row.rx_bytes),
  number("Page faults", (row) => row.page_faults),
  number("RNR NAKs sent", (row) => row.rnr_naks_sent),
  number("Retries", (row) => row.retries),
];
const ENGINES = [
  text("Engine", (row) => row.name),
  text("NICs", (row) => row.nics.join(", ")),
  number("Passes", (row) => row.passes),
  number("Sleeps", (row) => row.sleeps),
  number("Busy", (row) => row.busy_ns, duration),
  number("Longest pass", (row) => row.longest_pass_ns, duration),
  number("Missed wake-ups", (row) => row.missed_wakeups),
];
const PORTS = [
  text("Port", (row) => row.name),
  text("Peer", (row) => row.connected ? "connected" : "none"),
  number("Sent frames", (row) => row.tx_frames),
  number("Received frames", (row) => row.rx_frames),
  number("Sent bytes", (row) => row.tx_bytes),
  number("Received bytes", (row) => row.rx_bytes),
  text("Dropped frames", (row) => Object.entries(row.dropped).filter(([, count]) => count > 0).map(([why, count]) => `${why} ${count}`).join(", ") || "none"),
  number("Holds", (row) => row.holds),
  number("Malformed", (row) => row.malformed),
];
const LINKS = [
  text("NIC or port", (row) => row.port),
  text("Direction", (row) => row.direction),
  ...["lost", "queue_full", "duplicated", "reordered", "corrupted", "marked", "pauses"].map((name) =>
    number(name.replace("_", " ").replace(/^./, (letter) => letter.toUpperCase()), (row) => row[name])),
];

class PairsView {
  constructor(isLive) {
    this.name = "Queue pairs";
    this.isLive = isLive;
    const columns = isLive ? LIVE_PAIRS : RUN_PAIRS;
    const sort = { at: columns.findIndex((column) => column.title.startsWith("Sent")), down: true };
    this.table = new Table("Queue pairs", columns, { sort, trouble: (row) => row.state === "ERR" || row.waits_for_page });
    this.note = el("p");
    this.element = el("div", {}, this.note, this.table.element);
  }

  draw(view) {
    this.note.textContent = this.isLive && view.rows.incomplete.queue_pairs ? "There are more queue pairs than are read." : "";
    this.table.update(this.isLive ? view.rows.queue_pairs : view.queue_pairs);
  }
}

const LIVE_PAIRS = [
  text("QPN", (row) => row.qpn, { number: true }),
  text("NIC", (row) => row.nic),
  text("Kind", (row) => row.kind),
  text("State", (row) => row.state),
  text("Fault policy", (row) => row.fault_policy),
  number("Sent packets/s", (row) => row.tx_packets_per_s),
  number("Received packets/s", (row) => row.rx_packets_per_s),
  number("Sent B/s", (row) => row.tx_bytes_per_s),
  number("Received B/s", (row) => row.rx_bytes_per_s),
  text("Waits for a page", (row) => row.waits_for_page ? "yes" : "-"),
  number("Requests posted", (row) => row.sends_pending),
  text("Peer", (row) => row.peer_qpn, { number: true }),
  text("Process", owner),
];
const RUN_PAIRS = [
  text("QPN", (row) => row.qpn, { number: true }),
  text("NIC", (row) => row.nic),
  number("Sent packets", (row) => row.tx_packets),
  number("Received packets", (row) => row.rx_packets),
  number("Sent bytes", (row) => row.tx_bytes),
  number("Received bytes", (row) => row.rx_bytes),
  number("Page faults", (row) => row.page_faults),
  text("Peer", (row) => row.peer_qpn, { number: true }),
  text("Process", owner),
];
