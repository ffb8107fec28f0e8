// The page: a run that is in the file itself, or samples of a process.
const RETRY_MS = 500;
const data = document.getElementById("data");
const isLive = data === null;
const token = location.hash.slice(1);
const notice = document.getElementById("notice");
const refusal = document.getElementById("refusal");

function say(message) {
  if (notice.textContent !== message) notice.textContent = message;
}

async function api(path, options = {}) {
  const headers = { authorization: `Bearer ${token}`, ...(options.body ? { "content-type": "application/json" } : {}) };
  const answer = await fetch(`api/${path}`, { ...options, headers });
  if (!answer.ok) {
    const message = await answer.json().then((body) => body.error, () => answer.statusText);
    throw new Error(message);
  }
  return answer;
}

const views = [
  new FabricView(isLive),
  new PairsView(isLive),
  new PagesView(isLive, (nic, key) => api(`pages?nic=${encodeURIComponent(nic)}&key=${key}`).then((answer) => answer.text()).then(parse)),
  new FaultsView(isLive),
  ...(isLive ? [new RulesView()] : []),
  new EventsView(),
];
let current = views[0];
let newest = null;
// State of the engine in the newest sample, also while the display is frozen.
let engine = null;
let isFrozen = false;

const buttons = views.map((view) => el("button", { type: "button", onclick: () => choose(view) }, view.name));
document.getElementById("views").append(...buttons);

function choose(view) {
  current = view;
  buttons.forEach((button, at) => {
    if (views[at] === view) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  });
  document.getElementById("view").replaceChildren(view.element);
  if (newest) view.draw(newest);
}

// Takes a sample.
function take(view) {
  if (view.error) {
    say(`No answer from the process: ${view.error}`);
    return;
  }
  say("");
  for (const each of views) each.observe?.(view);
  engine = view.engine;
  setButtons();
  if (isFrozen) return;
  newest = view;
  describe(view);
  current.draw(view);
}

const source = document.getElementById("source");
const pause = el("button", { type: "button", onclick: () => order("engine", "PUT", { paused: !engine.paused }) }, "Pause the NICs");
const passes = el("input", { type: "number", min: 1, max: 256, value: 1 });
const advance = el("input", { type: "number", min: 0, max: 3600000000, value: 0 });
const step = el("button", { type: "button", onclick: () => order("engine/step", "POST", { passes: passes.valueAsNumber, advance_us: advance.valueAsNumber }) }, "Step");
const freeze = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
  isFrozen = !isFrozen;
  freeze.setAttribute("aria-pressed", String(isFrozen));
  freeze.textContent = isFrozen ? "Continue the display" : "Freeze the display";
} }, "Freeze the display");
if (isLive) {
  document.getElementById("controls").append(freeze, pause,
    el("label", {}, "Passes ", passes), el("label", {}, "Advance (\u00b5s) ", advance), step);
  setButtons();
}

function setButtons() {
  pause.disabled = !engine;
  pause.textContent = engine?.paused ? "Resume the NICs" : "Pause the NICs";
  step.disabled = passes.disabled = advance.disabled = !engine?.paused;
}

function describe(view) {
  if (!isLive) {
    const lost = view.lost > 0 ? `, ${view.lost} lost` : "";
    source.textContent = `${view.source}: ${view.records} records${lost} in ${duration(view.span_ns)}`;
    return;
  }
  const { engine, rows } = view;
  const busy = rows.engine.busy === null ? "-" : `${Math.round(rows.engine.busy * 100)} %`;
  source.textContent = `${view.source}: engine ${engine.paused ? "paused" : `${busy} busy`}, device clock ${clock(engine.device_time_ns)} s, a sample every ${view.interval_s} s`;
}

async function order(path, method, body) {
  refusal.textContent = "";
  try {
    await api(path, { method, body: JSON.stringify(body) });
  } catch (error) {
    refusal.textContent = error.message;
  }
}

// Reads server-sent events. EventSource can send no header, so this reads the stream itself.
async function follow() {
  const answer = await api("samples");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let hasSample = false;
  for (;;) {
    // The server may cut a stream that has begun late on its connection: that is its end, not an error.
    const { value, done } = await reader.read().catch((error) => {
      if (hasSample) return { done: true };
      throw error;
    });
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    // If several have come at once, the display needs the newest only.
    const event = events.pop();
    if (event?.startsWith("data: ")) {
      hasSample = true;
      take(parse(event.slice(6)));
    }
  }
}

async function run() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      say(`No connection to faultline ui: ${error.message}`);
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

choose(current);
if (!isLive) take(parse(data.textContent));
else if (token === "") say("The address lacks its token: open the whole address that faultline ui has printed.");
else run();
