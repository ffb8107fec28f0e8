// Elements and texts. All texts become text nodes: none is read as HTML.
const SVG = "http://www.w3.org/2000/svg";

// A value of JSON. Addresses and tokens have 64 bits, more than a number of the language holds exactly; a browser that does not give the source
// text of a number rounds them.
function parse(json) {
  const exact = (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
  return JSON.parse(json, exact);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

const UNITS = ["", "k", "M", "G", "T", "P"];

// Three digits and a power of 1000; "-" for a value that is not known.
function si(value, unit = "") {
  if (value === null || value === undefined) return "-";
  value = Number(value);
  let at = 0;
  while (Math.abs(value) >= 999.5 && at < UNITS.length - 1) {
    value /= 1000;
    at += 1;
  }
  const digits = value === Math.round(value) && at === 0 ? 0 : Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)}${unit && " "}${UNITS[at]}${unit}`;
}

// Bytes with a power of 1024.
function size(bytes) {
  bytes = Number(bytes);
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) {
    bytes /= 1024;
    at += 1;
  }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(1)} ${units[at]}`;
}

function duration(ns) {
  if (ns === null || ns === undefined) return "-";
  ns = Number(ns);
  for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"]]) {
    if (ns >= unit) return `${(ns / unit).toPrecision(3)} ${name}`;
  }
  return `${ns} ns`;
}

// Device clock: seconds with microseconds.
function clock(ns) {
  return ns === null || ns === undefined ? "-" : (Number(ns) / 1e9).toFixed(6);
}

function hex(value) {
  return value === null || value === undefined ? "-" : `0x${BigInt(value).toString(16)}`;
}

function owner(row) {
  if (row.program) return `${row.program}${row.pid ? ` ${row.pid}` : ""}`;
  return row.context === 0 ? "kernel" : "-";
}

function orDash(value) {
  return value === null || value === undefined ? "-" : String(value);
}
