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
    source: text[c.source[i]], scope: text[c.module_path[i]], offset: c.offset[i], allocation: c.allocation[i],
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
}
DATA.programs.forEach(unpack);
let program = DATA.programs[0], view, picked = null, shown = PAGE, sort = { key: "bytes", down: true };

function showAll() { view = { from: 0, to: program.steps, low: 0, high: program.top }; }
function colourOf(b) {
  if ($("colour").value === "kind") return css(b.kind);
  return b.rank < 0 ? css("constant") : `hsl(${Math.round(130 - 130 * b.rank / Math.max(program.ranked, 1))} 60% 50%)`;
}
function canvas(id) {
  const element = $(id), ratio = window.devicePixelRatio || 1, width = element.clientWidth, height = +element.dataset.height;
  element.width = width * ratio; element.height = height * ratio; element.style.height = height + "px";
  const context = element.getContext("2d");
  context.scale(ratio, ratio); context.clearRect(0, 0, width, height); context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}
for (const id of ["curve", "map"]) $(id).dataset.height = $(id).getAttribute("height");

function note(context, text, x, y) {  // readable over rectangles
  context.fillStyle = css("paper"); context.globalAlpha = .8;
  context.fillRect(x - 3, y - 12, context.measureText(text).width + 6, 16);
  context.globalAlpha = 1; context.fillStyle = css("dim"); context.fillText(text, x, y);
}
function drawMap() {
  const { context, width, height } = canvas("map"), colours = new Map();
  const x = step => (step - view.from) / (view.to - view.from) * width;
  const y = address => height - (address - view.low) / (view.high - view.low) * height;
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
    context.beginPath(); context.moveTo(x(program.peak_step + .5), 0); context.lineTo(x(program.peak_step + .5), height);
    context.stroke(); context.setLineDash([]);
  }
  note(context, size(Math.round(view.high)), 6, 16);
  note(context, `step ${Math.floor(view.from)}`, 6, height - 8);
  const last = `step ${Math.ceil(view.to)}`;
  note(context, last, width - 6 - context.measureText(last).width, height - 8);
}
function drawCurve() {
  const { context, width, height } = canvas("curve"), live = program.live_bytes;
  const most = Math.max(...DATA.programs.map(p => p.peak_live_bytes), DATA.budget_bytes || 0, 1) * 1.18;
  const x = step => (step - view.from) / (view.to - view.from) * width, y = bytes => height - bytes / most * height;
  context.fillStyle = css("temporary"); context.globalAlpha = .55; context.beginPath(); context.moveTo(x(0), height);
  for (let step = 0; step < live.length; step++) {
    if (step + 1 < view.from || step > view.to) continue;
    context.lineTo(x(step), y(live[step])); context.lineTo(x(step + 1), y(live[step]));
  }
  context.lineTo(x(Math.min(live.length, view.to)), height); context.fill(); context.globalAlpha = 1;
  context.fillStyle = css("text");
  if (program.peak_step >= 0) {
    const near = Math.min(Math.max(x(program.peak_step + .5), 4), width - 150);
    context.fillText(`peak ${size(program.peak_live_bytes)}, step ${program.peak_step}`, near, y(program.peak_live_bytes) - 4);
  }
  if (DATA.budget_bytes) {
    context.strokeStyle = context.fillStyle = css("over"); context.setLineDash([6, 4]); context.beginPath();
    context.moveTo(0, y(DATA.budget_bytes)); context.lineTo(width, y(DATA.budget_bytes)); context.stroke();
    context.setLineDash([]); context.fillText(`budget ${size(DATA.budget_bytes)}`, 6, y(DATA.budget_bytes) - 4);
  }
}
let pending = false;
function draw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; drawMap(); drawCurve(); });
}

const COLUMNS = [["bytes", "bytes", b => size(b.bytes), "number"], ["kind", "kind", b => b.kind],
  ["type", "type", b => b.type], ["start", "live", b => b.start < 0 ? "" : `${b.start}..${b.end - 1}`, "number"],
  ["cost", "recompute", b => seconds(b.cost), "number wide"], ["rank", "rank", b => b.rank < 0 ? "" : b.rank, "number wide"],
  ["source", "line", b => b.source], ["scope", "scope", b => b.scope, "wide"], ["name", "buffer", b => b.name, "wide"]];
function fillTable() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), peak = program.peak_step;
  const rows = program.buffers.filter(b =>
    (!$("peak").checked || (b.isTemp && (b.start < 0 || peak < 0 || (b.start <= peak && peak < b.end)))) &&
    words.every(word => `${b.source} ${b.scope} ${b.type} ${b.name} ${b.kind}`.toLowerCase().includes(word)));
  const unknown = v => v === null || v === "" || (sort.key === "rank" && v < 0);
  rows.sort((a, b) => {
    const [p, q] = [a[sort.key], b[sort.key]];
    if (unknown(p) !== unknown(q)) return unknown(p) ? 1 : -1;
    return (p < q ? -1 : p > q ? 1 : 0) * (sort.down ? -1 : 1);
  });
  $("count").textContent = `${rows.length} buffers, ${size(rows.reduce((sum, b) => sum + b.bytes, 0))}`;
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
  $("more").hidden = rows.length <= shown;
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
    ["fragmentation", (100 * program.fragmentation).toFixed(1) + "%"], ["arguments", size(program.argument_bytes)],
    ["outputs", size(program.output_bytes)], ["aliased", size(program.alias_bytes)]];
  if (DATA.budget_bytes) cards.push(["budget for temporaries", size(DATA.budget_bytes)]);
  $("cards").replaceChildren(...cards.map(c => card(...c)));
  for (const button of $("toggle").querySelectorAll("button")) button.ariaPressed = String(button.textContent === program.label);
  showAll(); draw(); fillTable();
}
function fillLegend() {
  const byKind = $("colour").value === "kind";
  const entries = byKind ? KINDS.map(kind => [kind, css(kind)])
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
function bufferAt(event) {
  const box = $("map").getBoundingClientRect();
  const step = view.from + (event.clientX - box.left) / box.width * (view.to - view.from);
  const address = view.low + (box.bottom - event.clientY) / box.height * (view.high - view.low);
  return program.inHeap.find(b => b.start <= step && step < b.end && b.offset <= address && address < b.offset + b.bytes);
}
function tip(event) {
  const b = bufferAt(event);
  $("tip").style.display = b ? "block" : "none";
  if (!b) return;
  const lines = [`${size(b.bytes)} ${b.type} ${b.kind}`, b.source, b.scope, `${b.name} (${b.op})`,
    `steps ${b.start} to ${b.end - 1}, address ${size(b.offset)}` + (b.padding ? `, ${size(b.padding)} of it padding` : ""),
    b.cost === null ? "" : `bringing it back: ${seconds(b.cost)}, rank ${b.rank}`].filter(Boolean);
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
  move(dx / $("map").clientWidth * (view.to - view.from), dy / $("map").clientHeight * (view.high - view.low));
  drag = { x: e.clientX, y: e.clientY, moved: true };
};
$("map").onpointerleave = () => { $("tip").style.display = "none"; };
$("map").addEventListener("wheel", e => {
  const box = $("map").getBoundingClientRect();
  e.preventDefault();
  zoom(e.deltaY > 0 ? 1.2 : 1 / 1.2, (e.clientX - box.left) / box.width, (box.bottom - e.clientY) / box.height);
}, { passive: false });
$("map").onkeydown = e => {
  const w = (view.to - view.from) / 10, h = (view.high - view.low) / 10;
  const keys = { ArrowLeft: () => move(-w, 0), ArrowRight: () => move(w, 0), ArrowUp: () => move(0, h), ArrowDown: () => move(0, -h),
    "+": () => zoom(1 / 1.3, .5, .5), "=": () => zoom(1 / 1.3, .5, .5), "-": () => zoom(1.3, .5, .5), 0: () => { showAll(); draw(); } };
  if (keys[e.key]) { keys[e.key](); e.preventDefault(); }
};
$("reset").onclick = () => { showAll(); draw(); };
$("colour").onchange = () => { fillLegend(); draw(); };
$("search").oninput = $("peak").onchange = () => { shown = PAGE; fillTable(); };
$("more").onclick = () => { shown += 20 * PAGE; fillTable(); };
addEventListener("keydown", e => {
  if (e.target.matches("input, select") || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "/") { $("search").focus(); e.preventDefault(); }
  if (e.key === "t") choose(DATA.programs[(DATA.programs.indexOf(program) + 1) % DATA.programs.length]);
});
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { fillLegend(); draw(); });

if (DATA.programs.length > 1) {
  $("toggle").hidden = false;
  for (const each of DATA.programs) {
    const button = document.createElement("button");
    button.textContent = each.label; button.onclick = () => choose(each);
    $("toggle").lastElementChild.before(button);
  }
}
fillHead(); fillLegend(); choose(program);
if (DATA.plan) fillPlan(DATA.plan);
if (DATA.frontier) fillFrontier(DATA.frontier);
