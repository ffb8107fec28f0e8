// The page table of a region as a heat map.
const CELL = 14;
const ACROSS = 64;
const SMALLEST = 4096;
const STATES = {
  absent: "#e4e7eb",
  present: "#1f6fb2",
  writable: "#7a3e9d",
  faulting: "#c62828",
};
// Texts of the legend.
const MEANINGS = {
  absent: "absent",
  present: "present, read only",
  writable: "present, the device may write: marked dirty when the page is released",
  faulting: "has a page fault without an answer",
};

// The state that gives a bucket its colour, and the part of its pages that are present.
function stateOf(bucket) {
  if (bucket.faulting > 0) return ["faulting", 1];
  if (bucket.present === 0) return ["absent", 1];
  const part = bucket.pages > 0 ? bucket.present / bucket.pages : 0;
  return [bucket.writable * 2 >= bucket.present ? "writable" : "present", part];
}

// A colour between those of absent and of present pages. A quarter at least, so that a single page is visible.
function shade(state, part) {
  if (state === "absent" || part >= 1) return STATES[state];
  const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [from, to] = [parts(STATES.absent), parts(STATES[state])];
  const weight = 0.25 + 0.75 * part;
  return `rgb(${from.map((value, at) => Math.round(value + (to[at] - value) * weight)).join(" ")})`;
}

function sum(buckets, name) {
  return buckets.reduce((total, bucket) => total + bucket[name], 0);
}

class PagesView {
  // ask(nic, key) promises the page table.
  constructor(isLive, ask) {
    this.name = "Page tables";
    this.isLive = isLive;
    this.ask = ask;
    this.choice = el("select", { onchange: () => this.choose() });
    this.summary = el("p", { role: "status" });
    this.picture = el("div", { class: "scroll" });
    this.table = new Table("Parts of the region", [
      text("Addresses", (row) => row.from, { text: (row) => `${hex(row.from)} to ${hex(row.to)}` }),
      text("State", (row) => row.state),
      number("Pages", (row) => row.pages, orDash),
      number("Present", (row) => row.present, orDash),
      number("Writable", (row) => row.writable, orDash),
      number("Awaited", (row) => row.faulting, orDash),
    ]);
    const legend = el("ul", { class: "legend" }, ...Object.entries(MEANINGS).map(([state, meaning]) =>
      el("li", {}, svg("svg", { width: 14, height: 14, "aria-hidden": "true" }, svg("rect", { width: 14, height: 14, fill: STATES[state] })), meaning)));
    this.details = el("details", { "aria-label": "Parts of the region", ontoggle: () => this.show() }, el("summary", {}, "The same as a table"), this.table.element);
    this.element = el("div", {},
      el("div", { class: "bar" }, el("label", {}, "Region", this.choice)),
      this.summary, legend, this.picture, this.details);
    if (!isLive) {
      this.element.prepend(el("p", {}, "A recording has no page tables: a page counts as present after a fault for it was resumed, and each fault counts with its first page. Invalidations are not seen."));
    }
    this.regions = [];
  }

  draw(view) {
    const regions = this.isLive ? view.rows.regions : view.regions;
    this.regions = [...regions].sort((a, b) => a.nic.localeCompare(b.nic) || a.key - b.key);
    const name = (region) => `${region.nic} ${region.key}`;
    const before = this.choice.value;
    const names = this.regions.map(name);
    if (names.join() !== (this.names ?? []).join() || names.length === 0) {
      this.names = names;
      this.choice.replaceChildren(...this.regions.map((region) =>
        el("option", { value: name(region) }, `${region.nic}, key ${hex(region.key)}, ${size(region.length)}`)));
      if (names.includes(before)) this.choice.value = before;
    }
    this.choose();
  }

  async choose() {
    const wanted = this.choice.value;
    const region = this.regions.find((region) => `${region.nic} ${region.key}` === wanted);
    if (!region) {
      this.map = null;
      this.picture.replaceChildren();
      this.summary.textContent = this.isLive ? "There is no region." : "No region has had a page fault.";
      return;
    }
    if (this.isLive) {
      if (this.busy) return;
      this.busy = true;
      let map = null;
      let refusal = "";
      try {
        map = await this.ask(region.nic, region.key);
      } catch (error) {
        refusal = error.message;
      }
      this.busy = false;
      // Another region was chosen meanwhile.
      if (this.choice.value !== wanted) return this.choose();
      this.map = map;
      if (!map) {
        this.picture.replaceChildren();
        this.summary.textContent = refusal;
        return;
      }
    } else {
      this.map = region;
    }
    this.show();
  }

  show() {
    const map = this.map;
    if (!map) return;
    const { buckets } = map;
    const pages = sum(buckets, "pages");
    const counted = map.next === null ? "" : `, the first ${size(map.next * SMALLEST)} counted`;
    const said = `${size(map.length)} from ${hex(map.iova)}${counted}: ${sum(buckets, "present")} of ${pages} pages of 4 KiB are present, ` +
      `${sum(buckets, "writable")} writable, ${sum(buckets, "faulting")} awaited. Each cell is ${size(map.bucket_pages * SMALLEST)}.`;
    if (this.summary.textContent !== said) this.summary.textContent = said;
    const start = BigInt(map.iova) - BigInt(map.iova) % BigInt(SMALLEST);
    const bytes = BigInt(map.bucket_pages * SMALLEST);
    const rows = buckets.map((bucket, at) => {
      const [state, part] = stateOf(bucket);
      const from = start + bytes * BigInt(at + map.first);
      return { ...bucket, state, part, from, to: from + BigInt(bucket.pages * SMALLEST) - 1n };
    });
    const cells = rows.map((row, at) => svg("rect", {
      class: "cell", "data-state": row.state,
      x: (at % ACROSS) * CELL, y: Math.floor(at / ACROSS) * CELL, width: CELL - 1, height: CELL - 1,
      fill: shade(row.state, row.part),
    }, svg("title", {}, `${hex(row.from)} to ${hex(row.to)}: ${row.present} of ${row.pages} present, ${row.writable} writable, ${row.faulting} awaited`)));
    const width = ACROSS * CELL;
    const height = Math.max(1, Math.ceil(cells.length / ACROSS)) * CELL;
    this.picture.replaceChildren(svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": said }, ...cells));
    if (this.details.open) this.table.update(rows);
  }
}
