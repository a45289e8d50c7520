// What a plan decided, and the frontier that it was chosen from.
const percent = share => (share < 0 ? "" : "+") + (100 * share).toFixed(1) + "%";

function section(id, title, text) {
  const heading = document.createElement("h2"), paragraph = document.createElement("p");
  heading.textContent = title; paragraph.textContent = text; paragraph.className = "hint lines";
  $(id).append(heading, paragraph);
}
// Columns: title, text of a row, what it is sorted by, class.
function sortedTable(id, columns, rows) {
  const scroll = document.createElement("div"), table = document.createElement("table"), head = table.createTHead().insertRow();
  let sorted = -1, down = false;
  scroll.className = "scroll"; scroll.append(table); $(id).append(scroll);
  const fill = () => {
    const body = document.createElement("tbody"), order = [...rows];
    if (sorted >= 0) {
      const key = columns[sorted][2];
      order.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
    }
    for (const each of order) {
      const row = body.insertRow();
      for (const [, show, , kind] of columns) {
        const cell = row.insertCell(); cell.textContent = show(each); cell.className = kind || "";
      }
    }
    table.tBodies[0]?.remove(); table.append(body);
    [...head.cells].forEach((cell, i) => { cell.ariaSort = i !== sorted ? "none" : down ? "descending" : "ascending"; });
  };
  columns.forEach(([title, , , kind], i) => {
    const cell = document.createElement("th"), button = document.createElement("button");
    button.textContent = title; cell.className = kind || ""; cell.append(button); head.append(cell);
    button.onclick = () => { down = sorted === i ? !down : kind === "number"; sorted = i; fill(); };
  });
  fill();
}
function fillPlan(plan) {
  section("plan", "Decisions", plan.headline);
  sortedTable("plan", [["decision", d => d.decision + (d.times > 1 ? ` ${d.times}x` : ""), d => d.decision],
    ["bytes", d => size(d.num_bytes), d => d.num_bytes, "number"],
    ["one recompute", d => seconds(d.cost_s), d => d.cost_s, "number"], ["type", d => d.type, d => d.type],
    ["layer", d => d.layer, d => d.layer, "wide long"],
    ["line", d => (d.source || d.scope).replace(HOME, ""), d => d.source || d.scope, "long"], ["op", d => d.op, d => d.op, "wide"], ["value", d => d.value, d => d.value, "wide"]],
    plan.decisions);
}

function node(parent, name, attributes, text) {
  const element = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
// Whole numbers of a power of ten, four or so of them.
function ticks(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 3)), step = power * ([1, 2, 5].find(n => (high - low) / (n * power) < 6) || 10);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}
function drawFrontier(svg, points, references) {
  const [width, height, left, bottom, top, right] = [svg.clientWidth, 330, 64, 44, 26, 24], all = [...points, ...references];
  const most = Math.max(...all.map(p => p.temp_bytes), 1) * 1.05, unit = 1024 ** Math.min(Math.floor(Math.log2(most) / 10), 3);
  const low = Math.min(0, ...all.map(p => 110 * p.extra_compute)), high = Math.max(1, ...all.map(p => 100 * p.extra_compute)) * 1.1;
  const x = bytes => left + bytes / most * (width - left - right);
  const y = extra => top + (high - 100 * extra) / (high - low) * (height - top - bottom);
  svg.replaceChildren(); svg.setAttribute("height", height);
  for (const at of ticks(low, high)) {
    node(svg, "line", { x1: left, x2: width - right, y1: y(at / 100), y2: y(at / 100), class: "grid" });
    node(svg, "text", { x: left - 8, y: y(at / 100) + 4, "text-anchor": "end" }, `${+at.toFixed(3)}%`);
  }
  for (const at of ticks(0, most / unit)) {
    node(svg, "line", { x1: x(at * unit), x2: x(at * unit), y1: top, y2: height - bottom, class: "grid" });
    node(svg, "text", { x: x(at * unit), y: height - bottom + 18, "text-anchor": "middle" }, size(at * unit));
  }
  node(svg, "text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "compiled temporaries");
  node(svg, "text", { x: left, y: 14 }, "extra compute, modelled");
  node(svg, "polyline", { points: points.map(p => `${x(p.temp_bytes)},${y(p.extra_compute)}`).join(" "), class: "ours" });
  const named = new Map(points.map(p => [`${p.temp_bytes} ${p.extra_compute}`, p]));  // one plan for several budgets: the tightest
  const marks = [...[...named.values()].map(p => [p, "point"]), ...references.map(p => [p, "reference"])];
  const placed = [];
  for (const [p, kind] of marks) {
    const cx = x(p.temp_bytes), cy = y(p.extra_compute), dot = node(svg, "circle", { cx, cy, r: 5, class: kind });
    node(dot, "title", {}, `${p.name}: ${size(p.temp_bytes)}, ${percent(p.extra_compute)}`);
    const text = node(svg, "text", { x: cx + 8, class: kind }, p.name), wide = text.getComputedTextLength();
    const from = cx + 8 + wide > width ? cx - 8 - wide : cx + 8;
    const away = cy + 20 > height - bottom ? -13 : 13;  // not into the numbers of the axis
    let at = cy - 7;
    while (placed.some(other => from < other.to && other.from < from + wide && Math.abs(other.y - at) < 13)) at += away;
    placed.push({ from, to: from + wide, y: at });
    text.setAttribute("x", from); text.setAttribute("y", at);
  }
}
function fillFrontier(frontier) {
  const known = points => points.filter(p => p.extra_compute !== null);
  section("frontier", "Frontier", `${frontier.name}${frontier.target ? " on " + frontier.target : ""}: memory against recompute`
    + " under several budgets (line), and what is done by hand (orange)");
  const svg = document.createRange().createContextualFragment("<svg></svg>").firstChild;
  svg.setAttribute("role", "img"); svg.setAttribute("aria-label", "compiled temporaries against extra compute, as in the table below");
  $("frontier").append(svg);
  const draw = () => drawFrontier(svg, known(frontier.points), known(frontier.references));
  draw(); addEventListener("resize", draw);
  const extra = p => p.extra_compute === null ? "" : percent(p.extra_compute);
  sortedTable("frontier", [["plan", p => p.name, p => p.name],
    ["budget", p => p.budget_bytes ? size(p.budget_bytes) : "", p => p.budget_bytes, "number"],
    ["temporaries", p => size(p.temp_bytes), p => p.temp_bytes, "number"],
    ["in total", p => size(p.total_bytes), p => p.total_bytes, "number"],
    ["extra compute", extra, p => p.extra_compute, "number"], ["engine", p => p.engine, p => p.engine]],
    [...frontier.references, ...frontier.points]);
  for (const [name, reason] of frontier.omitted) {
    $("frontier").append(Object.assign(document.createElement("p"), { className: "hint", textContent: `${name}: ${reason}` }));
  }
}
