// A table that can be sorted and filtered, in pages.
const ROWS = 100;

class Table {
  // Columns: title; value(row), by which it is sorted; text(row), a text or a node; number: at the right.
  constructor(caption, columns, { sort = null, filter = true, trouble = () => false } = {}) {
    this.columns = columns;
    this.trouble = trouble;
    this.filter = filter;
    this.rows = [];
    this.page = 0;
    this.words = "";
    this.sort = sort;
    this.heads = columns.map((column, at) =>
      el("th", { scope: "col", class: column.number && "number" },
        column.fixed ? column.title : el("button", { type: "button", onclick: () => this.sortBy(at) }, column.title)));
    this.body = el("tbody");
    this.count = el("span", { role: "status" });
    this.back = el("button", { type: "button", onclick: () => this.turn(-1) }, "Previous rows");
    this.forth = el("button", { type: "button", onclick: () => this.turn(1) }, "Next rows");
    const input = el("input", { type: "search", oninput: () => {
      this.words = input.value.toLowerCase();
      this.page = 0;
      this.draw();
    } });
    this.bar = el("div", { class: "bar" },
      filter ? el("label", {}, `Filter ${caption.toLowerCase()}`, input) : null, this.back, this.forth, this.count);
    this.element = el("section", {},
      this.bar,
      el("div", { class: "scroll" },
        el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...this.heads)), this.body)));
  }

  sortBy(at) {
    const same = this.sort && this.sort.at === at;
    const down = same ? !this.sort.down : Boolean(this.columns[at].number);
    this.sort = { at, down };
    this.page = 0;
    this.draw();
  }

  turn(pages) {
    this.page += pages;
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  cell(row, column) {
    const text = column.text ? column.text(row) : column.value(row);
    return text === null || text === undefined ? "-" : text;
  }

  shown() {
    let rows = this.rows;
    if (this.words) {
      const has = (row) => this.columns.some((column) => {
        const text = this.cell(row, column);
        return typeof text !== "object" && String(text).toLowerCase().includes(this.words);
      });
      rows = rows.filter(has);
    }
    if (this.sort) {
      const { at, down } = this.sort;
      const { value } = this.columns[at];
      const order = (a, b) => {
        const [x, y] = [value(a) ?? null, value(b) ?? null];
        if (x === y) return 0;
        if (x === null) return 1;
        if (y === null) return -1;
        return (x < y ? -1 : 1) * (down ? -1 : 1);
      };
      rows = [...rows].sort(order);
    }
    return rows;
  }

  draw() {
    const rows = this.shown();
    const pages = Math.max(1, Math.ceil(rows.length / ROWS));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const first = this.page * ROWS;
    const part = rows.slice(first, first + ROWS);
    this.body.replaceChildren(...part.map((row) =>
      el("tr", { class: this.trouble(row) && "trouble" }, ...this.columns.map((column) =>
        el("td", { class: column.number ? "number" : column.wide ? "wrap" : null }, this.cell(row, column))))));
    if (part.length === 0) {
      this.body.append(el("tr", {}, el("td", { colspan: this.columns.length, class: "empty" }, "none")));
    }
    for (const [at, head] of this.heads.entries()) {
      if (this.columns[at].fixed) continue;
      const now = this.sort && this.sort.at === at ? (this.sort.down ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", now);
    }
    this.back.disabled = this.page === 0;
    this.forth.disabled = this.page >= pages - 1;
    this.back.hidden = this.forth.hidden = pages === 1;
    this.bar.hidden = pages === 1 && !this.filter;
    const text = pages > 1 ? `rows ${first + 1} to ${first + part.length} of ${rows.length}` : `${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
    if (this.count.textContent !== text) this.count.textContent = text;
  }
}

// Columns of one kind each.
const text = (title, value, more) => ({ title, value, ...more });
const number = (title, value, show = si) => ({ title, value, text: (row) => show(value(row)), number: true });
