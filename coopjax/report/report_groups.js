// What buffers come to, by what they have in common: as a table, and at the peak as a flame graph of the user's frames.
const share = (part, whole) => whole ? (100 * part / whole).toFixed(1) + "%" : "";

const KEYS = { line: b => b.source || "(no source line)", layer: b => b.layer || "(no scope)", scope: b => b.scope || "(no scope)",
  kind: b => b.kind, type: b => b.type };
function fillGroups(rows, by) {
  const found = new Map(), whole = rows.reduce((sum, b) => sum + b.bytes, 0);
  for (const b of rows) {
    const key = KEYS[by](b), group = found.get(key) || { key, bytes: 0, count: 0, largest: b };
    group.bytes += b.bytes; group.count++;
    if (b.bytes > group.largest.bytes) group.largest = b;
    found.set(key, group);
  }
  sortedTable("groups", [["bytes", g => size(g.bytes), g => g.bytes, "number"],
    ["share", g => share(g.bytes, whole), g => g.bytes, "number"], ["buffers", g => g.count, g => g.count, "number"],
    ["largest", g => `${size(g.largest.bytes)} ${g.largest.type}`, g => g.largest.bytes, "wide"], [by, g => g.key, g => g.key, "long"]],
    [...found.values()].sort((p, q) => q.bytes - p.bytes).slice(0, 1000));
}

// The frames from the outermost inwards as a tree; a node's bytes are those of all that its frames have made.
function frameTree(buffers) {
  const root = { name: "all at the peak", bytes: 0, inside: new Map() };
  for (const b of buffers) {
    let node = root;
    node.bytes += b.bytes;
    for (const frame of b.stack.length ? [...b.stack].reverse() : ["(no source line)"]) {
      if (!node.inside.has(frame)) node.inside.set(frame, { name: frame, bytes: 0, inside: new Map() });
      node = node.inside.get(frame);
      node.bytes += b.bytes;
    }
  }
  return root;
}
function fillFlames() {
  const peak = program.peak_step, flames = $("flames");
  const root = frameTree(program.temps.filter(b => peak >= 0 && b.start <= peak && peak < b.end));
  const rows = [];
  const lay = (node, left, depth) => {
    (rows[depth] ||= []).push([node, left]);
    for (const each of [...node.inside.values()].sort((p, q) => q.bytes - p.bytes)) {
      if (each.bytes / root.bytes * flames.clientWidth >= 3) lay(each, left, depth + 1);
      left += each.bytes;
    }
  };
  if (root.bytes) lay(root, 0, 0);
  flames.replaceChildren(...rows.map(row => {
    const line = document.createElement("div");
    line.className = "flame";
    for (const [node, left] of row) {
      const [, file, rest] = /^(.*?)([^/]*)$/.exec(node.name), button = document.createElement("button");
      button.style.left = 100 * left / root.bytes + "%"; button.style.width = 100 * node.bytes / root.bytes + "%";
      button.textContent = rest; button.title = `${size(node.bytes)}, ${share(node.bytes, root.bytes)}: ${file}${rest}`;
      button.onclick = () => { $("search").value = node === root ? "" : node.name.replace(/ \(.*/, ""); $("search").oninput(); };
      line.append(button);
    }
    return line;
  }));
}
