const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const KINDS = ["residual", "temporary", "output", "parameter", "constant"];
const PAGE = 50;
const css = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < 4) { bytes /= 1024; unit++; }
  return unit ? bytes.toFixed(2) + " " + units[unit] : bytes + " B";
}
const seconds = s => s === null ? "" : s < 1e-3 ? (s * 1e6).toFixed(1) + " us" : (s * 1e3).toFixed(2) + " ms";

// Columns come in parallel arrays; texts are numbers into a table of texts.
function unpack(program) {
  const c = program.columns, text = program.texts;
  program.buffers = c.num_bytes.map((bytes, i) => ({
    bytes, name: text[c.name[i]], type: text[c.type[i]], kind: text[c.kind[i]], op: text[c.op[i]], memory: text[c.memory[i]],
    source: text[c.source[i]], scope: text[c.argument[i]] || text[c.module_path[i]], layer: text[c.layer[i]],
    stack: program.stacks[c.stack[i]], offset: c.offset[i], allocation: c.allocation[i],
    start: c.start[i], end: c.end[i], cost: c.cost_s[i], rank: c.cost_rank[i], padding: c.padding_bytes[i],
    isTemp: text[c.memory[i]] === "temporary" && c.memory_space[i] === 0 }));
  program.temps = program.buffers.filter(b => b.isTemp && b.start >= 0);
  // The heap: the allocation that holds most of the temporaries.
  const held = new Map();
  for (const b of program.temps) held.set(b.allocation, (held.get(b.allocation) || 0) + b.bytes);
  program.heap = [...held].sort((a, b) => b[1] - a[1])[0]?.[0] ?? -1;
  program.inHeap = program.temps.filter(b => b.allocation === program.heap);
  program.top = program.inHeap.reduce((most, b) => Math.max(most, b.offset + b.bytes), 1);
  program.ranked = program.temps.reduce((most, b) => Math.max(most, b.rank), 0);
  program.steps = Math.max(program.live_bytes.length, 1);
  program.hasSteps = program.live_bytes.length > 0;
}
DATA.programs.forEach(unpack);
// The directory that all lines are in, which rows leave out.
const HOME = DATA.programs.flatMap(p => p.buffers).map(b => b.source).filter(Boolean).reduce((home, source) => {
  while (!source.startsWith(home)) home = home.slice(0, home.slice(0, -1).lastIndexOf("/") + 1);
  return home;
}, (DATA.programs[0].buffers.find(b => b.source)?.source || "").replace(/[^/]*$/, ""));
let program = DATA.programs[0], view, picked = null, shown = PAGE, sort = { key: "bytes", down: true };

function showAll() { view = { from: 0, to: program.steps, low: 0, high: program.top }; }
function colourOf(b) {
  if ($("colour").value === "kind") return css(b.kind);
  return b.rank < 0 ? css("constant") : `hsl(${Math.round(130 - 130 * b.rank / Math.max(program.ranked, 1))} 60% 50%)`;
}
// A canvas with axes: steps from left to right, bytes upwards from `low` to `high`, both with titles and numbers.
const MARGIN = { left: 84, right: 14, top: 22, bottom: 40 };
const inner = element => ({ width: element.clientWidth - MARGIN.left - MARGIN.right,
  height: +element.dataset.height - MARGIN.top - MARGIN.bottom });
function chart(id, title, low, high) {
  const element = $(id), ratio = window.devicePixelRatio || 1, whole = { width: element.clientWidth, height: +element.dataset.height };
  element.width = whole.width * ratio; element.height = whole.height * ratio; element.style.height = whole.height + "px";
  const context = element.getContext("2d"), { width, height } = inner(element), bottom = MARGIN.top + height;
  context.scale(ratio, ratio); context.clearRect(0, 0, whole.width, whole.height); context.font = "12px system-ui, sans-serif";
  const x = step => MARGIN.left + (step - view.from) / (view.to - view.from) * width;
  const y = bytes => bottom - (bytes - low) / (high - low) * height;
  context.strokeStyle = css("line"); context.fillStyle = css("dim"); context.lineWidth = 1;
  const unit = 1024 ** Math.min(Math.max(Math.floor(Math.log2(Math.max(high, 1)) / 10), 0), 4);
  const line = (fromX, fromY, toX, toY) => { context.beginPath(); context.moveTo(fromX, fromY); context.lineTo(toX, toY); context.stroke(); };
  context.textAlign = "right";
  for (const at of ticks(low / unit, high / unit)) {
    line(MARGIN.left, y(at * unit), MARGIN.left + width, y(at * unit));
    context.fillText(size(Math.round(at * unit)), MARGIN.left - 6, y(at * unit) + 4);
  }
  context.textAlign = "center";
  for (const at of ticks(view.from, view.to).filter(Number.isInteger)) {
    line(x(at), bottom, x(at), bottom + 4);
    context.fillText(at.toLocaleString("en"), x(at), bottom + 17);
  }
  context.fillText("step of the schedule", MARGIN.left + width / 2, bottom + 34);
  context.textAlign = "left"; context.fillText(title, MARGIN.left, 14);
  context.save(); context.beginPath(); context.rect(MARGIN.left, MARGIN.top, width, height); context.clip();
  return { context, x, y, width, height };  // what is drawn now stays inside; the caller restores
}
for (const id of ["curve", "map"]) $(id).dataset.height = $(id).getAttribute("height");

function drawMap() {
  const { context, x, y, height } = chart("map", "address in the heap", view.low, view.high), colours = new Map();
  for (const b of program.inHeap) {
    if (b.end <= view.from || b.start >= view.to || b.offset >= view.high || b.offset + b.bytes <= view.low) continue;
    const left = x(b.start), top = y(b.offset + b.bytes);
    const key = $("colour").value === "kind" ? b.kind : b.rank;
    if (!colours.has(key)) colours.set(key, colourOf(b));
    context.fillStyle = colours.get(key);
    const w = Math.max(x(b.end) - left, 1), h = Math.max(y(b.offset) - top, 1);
    context.fillRect(left, top, w, h);
    if (w > 3 && h > 3) { context.strokeStyle = css("paper"); context.lineWidth = .6; context.strokeRect(left, top, w, h); }
    if (b === picked) { context.strokeStyle = css("text"); context.lineWidth = 2; context.strokeRect(left, top, w, h); }
  }
  if (program.peak_step >= 0) {
    context.strokeStyle = css("text"); context.setLineDash([4, 4]); context.lineWidth = 1;
    context.beginPath(); context.moveTo(x(program.peak_step + .5), MARGIN.top);
    context.lineTo(x(program.peak_step + .5), MARGIN.top + height); context.stroke(); context.setLineDash([]);
  }
  context.restore();
}
const budgetText = () => `budget ${size(DATA.budget_bytes)}`;
// The most of the steps that fall on one pixel, pixel by pixel: a peak of one step in 100,000 is seen.
function drawCurve() {
  const live = program.live_bytes, most = Math.max(...DATA.programs.map(p => p.peak_live_bytes), DATA.budget_bytes || 0, 1) * 1.18;
  const { context, x, y, width } = chart("curve", "live temporary bytes", 0, most), perPixel = (view.to - view.from) / width;
  context.fillStyle = css("temporary"); context.globalAlpha = .55; context.beginPath(); context.moveTo(MARGIN.left, y(0));
  for (let pixel = 0; pixel < width; pixel++) {
    const from = Math.floor(view.from + pixel * perPixel), to = Math.max(from + 1, Math.ceil(view.from + (pixel + 1) * perPixel));
    let bytes = 0;
    for (let step = from; step < Math.min(to, live.length); step++) bytes = Math.max(bytes, live[step]);
    context.lineTo(MARGIN.left + pixel, y(bytes)); context.lineTo(MARGIN.left + pixel + 1, y(bytes));
  }
  context.lineTo(MARGIN.left + width, y(0)); context.fill(); context.globalAlpha = 1;
  context.fillStyle = css("text");
  if (program.peak_step >= 0) {
    const text = `peak ${size(program.peak_live_bytes)}, step ${program.peak_step}`, wide = context.measureText(text).width;
    const line = DATA.budget_bytes ? y(DATA.budget_bytes) : -1, at = y(program.peak_live_bytes) - 4;
    const isStruck = line > at - 13 && line < at + 4;  // by the line of the budget: above it then, behind its words
    const first = MARGIN.left + 6 + (isStruck ? context.measureText(budgetText()).width + 12 : 0);
    const near = Math.min(Math.max(x(program.peak_step + .5), first), MARGIN.left + width - wide - 4);
    context.fillText(text, near, isStruck ? line - 4 : at);
  }
  if (DATA.budget_bytes) {
    context.strokeStyle = context.fillStyle = css("over"); context.setLineDash([6, 4]); context.beginPath();
    context.moveTo(MARGIN.left, y(DATA.budget_bytes)); context.lineTo(MARGIN.left + width, y(DATA.budget_bytes)); context.stroke();
    context.setLineDash([]); context.fillText(budgetText(), MARGIN.left + 6, y(DATA.budget_bytes) - 4);
  }
  context.restore();
}
let pending = false;
function draw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; if (program.hasSteps) { drawMap(); drawCurve(); } });
}

const COLUMNS = [["bytes", "bytes", b => size(b.bytes), "number"], ["kind", "kind", b => b.kind],
  ["type", "type", b => b.type, "whole"], ["start", "live", b => b.start < 0 ? "" : `${b.start}..${b.end - 1}`, "number wide"],
  ["cost", "recompute", b => seconds(b.cost), "number wide"], ["rank", "rank", b => b.rank < 0 ? "" : b.rank, "number wide"],
  ["source", "line", b => b.source.replace(HOME, ""), "long"], ["scope", "scope", b => b.scope, "wide long"], ["name", "buffer", b => b.name, "wide long"]];
function fillTable() {
  const group = $("group").value, words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), peak = program.peak_step;
  const rows = program.buffers.filter(b =>
    (!$("peak").checked || (b.isTemp && (b.start < 0 || peak < 0 || (b.start <= peak && peak < b.end)))) &&
    words.every(word => `${b.source} ${b.scope} ${b.type} ${b.name} ${b.kind} ${b.stack.join(" ")}`.toLowerCase().includes(word)));
  $("count").textContent = `${rows.length} buffers, ${size(rows.reduce((sum, b) => sum + b.bytes, 0))}`;
  $("buffers").hidden = group !== "buffer"; $("groups").replaceChildren();
  $("more").hidden = group !== "buffer" || rows.length <= shown;
  if (group !== "buffer") return fillGroups(rows, group);
  const unknown = v => v === null || v === "" || (sort.key === "rank" && v < 0);
  rows.sort((a, b) => {
    const [p, q] = [a[sort.key], b[sort.key]];
    if (unknown(p) !== unknown(q)) return unknown(p) ? 1 : -1;
    return (p < q ? -1 : p > q ? 1 : 0) * (sort.down ? -1 : 1);
  });
  const body = document.createElement("tbody");
  for (const b of rows.slice(0, shown)) {
    const row = body.insertRow();
    if (b === picked) row.className = "picked";
    for (const [, , show, kind] of COLUMNS) { const cell = row.insertCell(); cell.textContent = show(b); cell.className = kind || ""; }
    row.tabIndex = 0;
    row.onclick = () => { picked = b; draw(); for (const other of body.rows) other.className = other === row ? "picked" : ""; };
    row.onkeydown = e => {
      const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[e.key];
      if (e.key === "Enter") row.onclick();
      if (next) { next.focus(); e.preventDefault(); }
    };
  }
  $("buffers").tBodies[0].replaceWith(body);
}
function fillHead() {
  const row = $("buffers").tHead.insertRow();
  for (const [key, title, , kind] of COLUMNS) {
    const cell = document.createElement("th"), button = document.createElement("button");
    cell.className = kind || ""; button.textContent = title; button.dataset.key = key;
    button.onclick = () => { sort = { key, down: sort.key === key ? !sort.down : key === "bytes" }; markSort(); fillTable(); };
    cell.append(button); row.append(cell);
  }
  markSort();
}
function markSort() {
  for (const cell of $("buffers").tHead.rows[0].cells) {
    const isSorted = cell.firstChild.dataset.key === sort.key;
    cell.ariaSort = isSorted ? (sort.down ? "descending" : "ascending") : "none";
  }
}
function card(title, value, isOver) {
  const element = document.createElement("div");
  element.className = "card" + (isOver ? " over" : "");
  const number = document.createElement("b"), label = document.createElement("span");
  number.textContent = value; label.textContent = title;
  element.append(number, label);
  return element;
}
function choose(next) {
  program = next; picked = null; shown = PAGE;
  $("name").textContent = program.name;
  const over = DATA.budget_bytes && program.temp_bytes > DATA.budget_bytes;
  const cards = [["total" + (program.is_predicted ? " (modelled)" : ""), size(program.total_bytes)],
    ["temporaries", size(program.temp_bytes), over], ["live at the peak", size(program.peak_live_bytes)],
    ["fragmentation", (100 * program.fragmentation).toFixed(1) + "%"],
    [`arguments, ${share(program.argument_bytes, program.total_bytes)} of the total`, size(program.argument_bytes)],
    ["outputs", size(program.output_bytes)], ["aliased", size(program.alias_bytes)]];
  if (DATA.budget_bytes) cards.push(["budget for temporaries", size(DATA.budget_bytes)]);
  $("cards").replaceChildren(...cards.map(c => card(...c)));
  for (const button of $("toggle").querySelectorAll("button")) button.ariaPressed = String(button.textContent === program.label);
  $("pictures").hidden = !program.hasSteps;
  showAll(); fillLegend(); draw(); fillFlames(); fillTable();
}
function fillLegend() {
  const byKind = $("colour").value === "kind";
  const entries = byKind ? KINDS.filter(kind => program.inHeap.some(b => b.kind === kind)).map(kind => [kind, css(kind)])
    : [["cheap to bring back", "hsl(130 60% 50%)"], ["dear", "hsl(0 60% 50%)"], ["can't be", css("constant")]];
  $("legend").replaceChildren(...entries.map(([name, colour]) => {
    const entry = document.createElement("span"), swatch = document.createElement("span");
    swatch.className = "swatch"; swatch.style.background = colour; entry.style.marginRight = ".8rem";
    entry.append(swatch, name);
    return entry;
  }));
}
function zoom(factor, atX, atY) {
  const step = view.from + atX * (view.to - view.from), address = view.low + atY * (view.high - view.low);
  const steps = Math.min((view.to - view.from) * factor, program.steps), span = Math.min((view.high - view.low) * factor, program.top);
  if (steps < 2) return;
  view = { from: step - atX * steps, to: step + (1 - atX) * steps, low: address - atY * span, high: address + (1 - atY) * span };
  move(0, 0);
}
function move(steps, bytes) {
  const dx = Math.min(Math.max(steps, -view.from), program.steps - view.to);
  const dy = Math.min(Math.max(bytes, -view.low), program.top - view.high);
  view = { from: view.from + dx, to: view.to + dx, low: view.low + dy, high: view.high + dy };
  draw();
}
// Where on the map, from 0 to 1 and beyond it, steps and addresses.
function place(event) {
  const box = $("map").getBoundingClientRect(), { width, height } = inner($("map"));
  return [(event.clientX - box.left - MARGIN.left) / width, (box.top + MARGIN.top + height - event.clientY) / height];
}
function bufferAt(event) {
  const [atX, atY] = place(event), step = view.from + atX * (view.to - view.from);
  const address = view.low + atY * (view.high - view.low);
  if (Math.min(atX, atY, 1 - atX, 1 - atY) < 0) return undefined;
  return program.inHeap.find(b => b.start <= step && step < b.end && b.offset <= address && address < b.offset + b.bytes);
}
function tip(event) {
  const b = bufferAt(event);
  $("tip").style.display = b ? "block" : "none";
  if (!b) return;
  const lines = [`${size(b.bytes)} ${b.type} ${b.kind}`, b.source, b.scope, `${b.name} (${b.op})`,
    `steps ${b.start} to ${b.end - 1}, address ${size(b.offset)}` + (b.padding ? `, ${size(b.padding)} of it padding` : ""),
    b.cost === null ? "" : `bringing it back: ${seconds(b.cost)}, rank ${b.rank}`, ...b.stack.slice(1)].filter(Boolean);
  $("tip").replaceChildren(...lines.map(line => Object.assign(document.createElement("div"), { textContent: line })));
  $("tip").style.left = Math.min(event.clientX + 14, innerWidth - $("tip").offsetWidth - 8) + "px";
  $("tip").style.top = Math.min(event.clientY + 14, innerHeight - $("tip").offsetHeight - 8) + "px";
}
let drag = null;
$("map").onpointerdown = e => { drag = { x: e.clientX, y: e.clientY, moved: false }; $("map").setPointerCapture(e.pointerId); };
$("map").onpointerup = e => {
  if (drag && !drag.moved) { picked = bufferAt(e) || null; $("search").value = picked ? picked.name : ""; fillTable(); draw(); }
  drag = null;
};
$("map").onpointermove = e => {
  if (!drag) return tip(e);
  const dx = drag.x - e.clientX, dy = e.clientY - drag.y;
  if (Math.abs(dx) + Math.abs(dy) < 3 && !drag.moved) return;
  $("tip").style.display = "none";
  const { width, height } = inner($("map"));
  move(dx / width * (view.to - view.from), dy / height * (view.high - view.low));
  drag = { x: e.clientX, y: e.clientY, moved: true };
};
$("map").onpointerleave = () => { $("tip").style.display = "none"; };
$("map").addEventListener("wheel", e => {
  e.preventDefault();
  zoom(e.deltaY > 0 ? 1.2 : 1 / 1.2, ...place(e));
}, { passive: false });
$("map").onkeydown = e => {
  const w = (view.to - view.from) / 10, h = (view.high - view.low) / 10;
  const keys = { ArrowLeft: () => move(-w, 0), ArrowRight: () => move(w, 0), ArrowUp: () => move(0, h), ArrowDown: () => move(0, -h),
    "+": () => zoom(1 / 1.3, .5, .5), "=": () => zoom(1 / 1.3, .5, .5), "-": () => zoom(1.3, .5, .5), 0: () => { showAll(); draw(); } };
  if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
};
$("reset").onclick = () => { showAll(); draw(); };
$("colour").onchange = () => { fillLegend(); draw(); };
$("search").oninput = $("peak").onchange = $("group").onchange = () => { shown = PAGE; fillTable(); };
$("more").onclick = () => { shown += 20 * PAGE; fillTable(); };
addEventListener("keydown", e => {
  if (e.target.matches("input, select") || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "/") { $("search").focus(); e.preventDefault(); }
  if (e.key === "t" && DATA.programs.length > 1) choose(DATA.programs[(DATA.programs.indexOf(program) + 1) % DATA.programs.length]);
});
addEventListener("resize", () => { draw(); fillFlames(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { fillLegend(); draw(); });

if (DATA.programs.length > 1) {
  $("toggle").hidden = false;
  for (const each of DATA.programs) {
    const button = document.createElement("button");
    button.textContent = each.label; button.onclick = () => choose(each);
    $("toggle").lastElementChild.before(button);
  }
}
fillHead(); choose(program);
if (DATA.plan) fillPlan(DATA.plan);
if (DATA.frontier) fillFrontier(DATA.frontier);
