// Draws the story that the page carries.
const story = JSON.parse($("story").textContent);

// ---- the columns ------------------------------------------------------------------------------------------------
const inflate = async (text) => {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};
const columns = async () => {
  const bytes = await inflate($("columns").textContent);
  const kinds = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };
  const out = {};
  for (const [name, type, offset, count] of story.columns) {
    out[name] = new kinds[type](bytes.buffer.slice(offset, offset + count * Number(type[1])), 0, count);
  }
  return out;
};
/** Sums of the differences within each track; `starts` has the first row of each track and the number of rows. */
const sums = (differences, starts, scale) => {
  const out = new Float64Array(differences.length);
  for (let track = 0; track + 1 < starts.length; track++) {
    let sum = 0;
    for (let at = starts[track]; at < starts[track + 1]; at++) out[at] = (sum += differences[at]) * scale;
  }
  return out;
};
const lower = (values, wanted, from, to) => {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < wanted) from = middle + 1;
    else to = middle;
  }
  return from;
};

// ---- lines of the logs ------------------------------------------------------------------------------------------
const texts = new Map();
const linesOf = async (file) => {
  if (!texts.has(file)) {
    const holder = $(`text-${file}`);
    const parts = story.texts[file] || [];
    const lines = new Map();
    if (holder && parts.length) {
      const all = new TextDecoder().decode(await inflate(holder.textContent)).split("\n");
      let at = 0;
      for (const [first, count] of parts) for (let n = 0; n < count; n++) lines.set(first + n, all[at++]);
    }
    texts.set(file, lines);
  }
  return texts.get(file);
};
const shortName = (file) => story.files[file].slice(story.folder.length);
const place = (file, line) => `${shortName(file)}:${line}`;

// Colours that colour-blind readers can distinguish (Okabe and Ito); each also has a word or a shape.
const STAGES = { started: "#9aa5b1", bootstrap: "#56b4e9", init: "#3d7fc4", topology: "#cc79a7", connect: "#e69f00", ready: "#7ac5a0",
  working: "#009e73", teardown: "#7f8c8d", done: "#7f8c8d" };
const GROUPS = { stage: "#009e73", init: "#2f4b7c", proxy: "#8c510a", fd: "#8e2f8e", sendrecv: "#2166ac", memory: "#5e8c31", wait: "#d55e00" };
const OTHER = "#8b95a1";
const MORE = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#5e8c31", "#8c510a"]; // of groups that only other timelines have
const others = [...new Set(story.kinds.map((kind) => kind.group))].filter((group) => !(group in GROUPS));
const groupColour = (group) => GROUPS[group] || (story.pins.length || !others.includes(group) ? OTHER : MORE[others.indexOf(group) % MORE.length]);
const colourOf = (kind) => (kind.group === "stage" ? STAGES[kind.label] : groupColour(kind.group)) || OTHER;
const number = (value) => value.toLocaleString("en-US");

const units = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const duration = (seconds) => {
  const size = Math.abs(seconds);
  if (size >= 3600) return `${(seconds / 3600).toFixed(2).replace(/\.?0+$/, "")} h`;
  if (size >= 120) return `${(seconds / 60).toFixed(2).replace(/\.?0+$/, "")} min`;
  const [scale, name] = units.find(([s]) => size >= s) || (size ? units[3] : units[0]);
  return `${Number((seconds / scale).toPrecision(6))} ${name}`;
};
const timed = story.axis.unit === "s";
const placeText = (at) => {
  if (!timed) return `${story.axis.step} ${number(Math.round(at))}`;
  if (story.axis.origin === null) return `+${duration(at)}`;
  return `${new Date((story.axis.origin + at) * 1000).toISOString().slice(0, 23).replace("T", " ")} (+${duration(at)})`;
};

// ---- the selected line ------------------------------------------------------------------------------------------
let timeline = null;
let showing = 0;
const drawer = async (item, around = 6) => {
  const box = $("drawer");
  if (!item) { box.hidden = true; document.body.style.paddingBottom = ""; return; }
  const mine = ++showing;
  const places = [[item.file, item.line]];
  if (item.endLine && (item.endFile !== item.file || item.endLine !== item.line)) places.push([item.endFile, item.endLine]);
  const top = make("div", { class: "top" }, make("h3", {}, item.label), make("span", { class: "dim" }, item.track >= 0 ? timeline.tracks[item.track].name : ""),
    make("span", { class: "dim" }, item.track >= 0 ? placeText(item.begin) : ""));
  if (item.what === "mark") {
    top.append(make("button", { type: "button", onclick: () => timeline.neighbour(-1), title: "Line before, of this thread (,)" }, "\u2190"),
      make("button", { type: "button", onclick: () => timeline.neighbour(1), title: "Next line of this thread (.)" }, "\u2192"));
  }
  top.append(make("button", { type: "button", onclick: () => (timeline ? timeline.select(null) : drawer(null)), title: "Close (Escape)" }, "close"));
  const body = [top];
  if (item.kind && item.kind.meaning) body.push(make("div", { class: "dim" }, item.kind.meaning));
  if (item.open) body.push(make("div", { class: "s-error" }, "No line shows its end."));
  for (const [file, line] of places) {
    if (!line) continue;
    const lines = await linesOf(file);
    const pre = make("pre", { class: "log" });
    for (let n = Math.max(1, line - around); n <= line + around; n++) {
      if (!lines.has(n)) continue;
      pre.append(make("span", { class: n === line ? "hit" : "" }, make("b", {}, `${n}`.padStart(7) + "  "), lines.get(n)));
    }
    body.push(make("div", { class: "mono" }, place(file, line)), pre.childNodes.length ? pre : make("div", { class: "empty" }, "The page does not hold this line: the logs are too long."));
  }
  if (mine !== showing) return;
  box.replaceChildren(...body);
  box.hidden = false;
  document.body.style.paddingBottom = `${box.offsetHeight}px`;
  if (timeline && item.track >= 0) timeline.reveal(item.track, innerHeight - box.offsetHeight);
};
const openPlace = (file, line) => {
  if (timeline && timeline.goTo(file, line)) return;
  drawer({ what: "line", track: -1, label: "line of the log", file, line });
};

// ---- search, filters, links -------------------------------------------------------------------------------------
let found = [], current = -1;
const search = async (text) => {
  found = []; current = -1;
  timeline.hits = new Map();
  const wanted = text.trim().toLowerCase();
  if (wanted) {
    const hits = new Set();
    for (let file = 0; file < story.files.length; file++) {
      for (const [line, content] of await linesOf(file)) if (content.toLowerCase().includes(wanted)) hits.add(file * 1e9 + line);
    }
    const kinds = new Set(story.kinds.map((kind, at) => (kind.name.toLowerCase().includes(wanted) ? at : -1)).filter((at) => at >= 0));
    for (let track = 0; track < timeline.tracks.length; track++) {
      for (let at = timeline.markStart[track]; at < timeline.markStart[track + 1]; at++) {
        if (!hits.delete(timeline.markFile[at] * 1e9 + timeline.markLine[at]) && !kinds.has(timeline.markKind[at])) continue;
        found.push([timeline.markFile[at], timeline.markLine[at], timeline.markAt[at]]);
        if (!timeline.hits.has(track)) timeline.hits.set(track, []);
        timeline.hits.get(track).push(timeline.markAt[at]);
      }
    }
    const labels = new Set(story.labels.map((label, at) => (label.toLowerCase().includes(wanted) ? at : -1)).filter((at) => at >= 0));
    for (let track = 0; labels.size && track < timeline.tracks.length; track++) {
      for (let at = timeline.markStart[track]; timeline.markLabel.length && at < timeline.markStart[track + 1]; at++) {
        if (!labels.has(timeline.markLabel[at])) continue;
        found.push([0, 0, timeline.markAt[at], -1 - at, track]);
        if (!timeline.hits.has(track)) timeline.hits.set(track, []);
        timeline.hits.get(track).push(timeline.markAt[at]);
      }
      for (let at = timeline.spanStart[track]; at < timeline.spanStart[track + 1]; at++) {
        if (!labels.has(timeline.spanLabel[at]) || story.kinds[timeline.spanKind[at]].group === "stage") continue;
        found.push([0, 0, timeline.spanBegin[at], at, track]);
        if (!timeline.hits.has(track)) timeline.hits.set(track, []);
        timeline.hits.get(track).push(timeline.spanBegin[at]);
      }
    }
    for (const hit of hits) found.push([Math.floor(hit / 1e9), hit % 1e9, Infinity]); // lines that no mark shows
    found.sort((one, other) => one[2] - other[2] || one[0] - other[0] || one[1] - other[1]);
  }
  const part = story.held < story.lines ? ` of the ${number(story.held)} that this page holds (of ${number(story.lines)})` : "";
  $("results").textContent = wanted ? `${number(found.length)} ${found.length === 1 ? "match" : "matches"}${part}${found.length ? "; Enter shows the next" : ""}` : "";
  timeline.request(); remember();
};
const next = (by) => {
  if (!found.length) return;
  current = (current + by + found.length) % found.length;
  const [file, line, , span, track] = found[current];
  if (track === undefined) openPlace(file, line);
  else timeline.goToSpan(span, track);
  $("results").textContent = `${number(current + 1)} of ${number(found.length)}`;
};
const ranksOf = (text) => {
  const out = new Set();
  for (const part of text.split(",")) {
    const match = part.trim().match(/^(\d+)(?:-(\d+))?$/);
    if (!match) continue;
    const last = Math.min(Number(match[2] === undefined ? match[1] : match[2]), Number(match[1]) + 100000);
    for (let rank = Number(match[1]); rank <= last; rank++) out.add(rank);
  }
  return out.size ? out : null;
};
const filter = (text) => {
  const wanted = ranksOf(text), known = new Set(timeline.tops.map((top) => timeline.tracks[top].rank));
  const none = wanted && ![...wanted].some((rank) => known.has(rank));
  timeline.ranks = none ? null : wanted;
  timeline.scroll.scrollTop = 0;
  timeline.layout();
  $("ranks-note").textContent = !text.trim() || (wanted && !none) ? "" : none ? "no such rank: all are shown" : "no list of ranks such as 0-3,7: all are shown";
  remember();
};
let remembering = 0;
const remember = () => {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    if (!timeline) return;
    const parts = new URLSearchParams();
    if (timeline.from > -timeline.pad * 0.99 || timeline.to < timeline.end + timeline.pad * 0.99) parts.set("view", `${timeline.from.toPrecision(8)},${timeline.to.toPrecision(8)}`);
    if (timeline.selected && timeline.selected.line) parts.set("line", `${timeline.selected.file}:${timeline.selected.line}`);
    if ($("ranks-filter").value) parts.set("ranks", $("ranks-filter").value);
    if ($("search").value) parts.set("find", $("search").value);
    const usual = timeline.tops.length <= 8, open = [...timeline.open].map((top) => timeline.tops.indexOf(top));
    if (usual ? open.length !== timeline.tops.length : open.length && open.length < 40) parts.set("open", open.join(","));
    if (timeline.hidden.size) parts.set("hide", [...timeline.hidden].join(","));
    history.replaceState(null, "", `#${parts}`);
  }, 250);
};
const recall = async () => {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (parts.has("ranks")) { $("ranks-filter").value = parts.get("ranks"); filter(parts.get("ranks")); }
  if (parts.has("open")) { timeline.open = new Set(parts.get("open").split(",").filter(Boolean).map((at) => timeline.tops[Number(at)]).filter((top) => top !== undefined)); timeline.layout(); }
  if (parts.has("hide")) for (const group of parts.get("hide").split(",")) setGroup(group, false);
  if (parts.has("find")) { $("search").value = parts.get("find"); await search(parts.get("find")); }
  const line = (parts.get("line") || "").match(/^(\d+):(\d+)$/);
  if (line && Number(line[1]) < story.files.length) openPlace(Number(line[1]), Number(line[2]));
  const view = (parts.get("view") || "").split(",").map(Number);
  if (view.length === 2 && view.every(Number.isFinite) && view[0] < view[1]) timeline.show(view[0], view[1]);
};
const setGroup = (group, shown) => {
  if (shown) timeline.hidden.delete(group);
  else timeline.hidden.add(group);
  const box = [...document.querySelectorAll("#groups input")].find((input) => input.value === group);
  if (box) box.checked = shown;
  timeline.request(); remember();
};

// ---- legend, graph, matrix --------------------------------------------------------------------------------------
const NAMES = { stage: "stages", init: "init of a communicator", proxy: "proxy calls", fd: "fd exchanges", sendrecv: "sends to recvs", memory: "memory made and mapped", wait: "waits" };
const labelOf = (group) => {
  const at = [...new Set(timeline.spanKind)].find((kind) => story.kinds[kind].group === group);
  return at === undefined ? group : story.kinds[at].label;
};
const swatch = (colour) => { const box = make("i"); box.style.background = colour; return box; };
const shape = (level) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 14 14");
  path.setAttribute("d", level === "error" ? "M2 3H12L7 12Z" : "M7 2L11 7L7 12L3 7Z");
  path.setAttribute("class", `s-${level}`); path.setAttribute("fill", "currentColor");
  svg.append(path);
  return svg;
};
const legend = () => {
  const used = new Set(timeline.spanKind);
  const stages = Object.keys(STAGES).filter((name) => [...used].some((at) => story.kinds[at].group === "stage" && story.kinds[at].label === name));
  const items = stages.map((name) => make("span", { class: "band" }, swatch(STAGES[name]), name));
  const groups = new Set([...used, ...timeline.arrowKind].map((at) => story.kinds[at].group));
  for (const group of groups) if (group !== "stage") items.push(make("span", {}, swatch(groupColour(group)), NAMES[group] || labelOf(group)));
  const levels = new Set([...new Set(timeline.markKind)].map((at) => story.kinds[at].level));
  for (const level of ["error", "warning"]) if (levels.has(level)) items.push(make("span", {}, shape(level), level));
  if (timeline.markAt.length) items.push(make("span", {}, swatch(style("--mark")), "line"));
  if (story.pins.length) items.push(make("span", {}, swatch(style("--error")), "vertical line: a finding rests on this line of the log"));
  if (groups.has("wait")) items.push(make("span", {}, "hatched: a wait"));
  if (timeline.spanOpen.some((open, at) => open && story.kinds[timeline.spanKind[at]].group !== "wait")) items.push(make("span", {}, "dashed frame: no line shows the end"));
  $("legend").replaceChildren(...items);
  $("groups").replaceChildren(...[...groups].map((group) => {
    const box = make("input", { type: "checkbox", value: group, onchange: (event) => setGroup(group, event.target.checked) });
    box.checked = true;
    return make("label", {}, box, ` ${NAMES[group] || labelOf(group)}`);
  }));
};
const matrix = () => {
  const canvas = $("matrix");
  if (!canvas || !story.links.length) return;
  const select = $("matrix-run"), run = select ? Number(select.value) : story.links[0].run;
  if (select) select.onchange = matrix;
  const links_ = story.links.filter((link) => link.run === run);
  const stages = new Map(story.stages.filter((row) => row.run === run).map((row) => [row.rank, row]));
  const ranks = [...new Set([...links_.flatMap((link) => [link.source, link.target]), ...stages.keys()])].sort((a, b) => a - b);
  const index = new Map(ranks.map((rank, at) => [rank, at]));
  const cell = Math.max(1, Math.min(30, Math.floor(620 / ranks.length))), left = cell >= 9 ? 34 : 12;
  const size = cell * ranks.length, ratio = devicePixelRatio || 1;
  canvas.width = (left + size + 6) * ratio; canvas.height = (left + size + 6) * ratio;
  canvas.style.width = `${left + size + 6}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = style("--lane"); context.fillRect(left, left, size, size);
  const vias = [...new Set(links_.map((link) => link.via.split("/")[0]))].sort();
  const palette = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
  const cells = new Map();
  for (const link of links_) {
    const key = `${link.source},${link.target}`;
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(link);
    context.fillStyle = palette[vias.indexOf(link.via.split("/")[0]) % palette.length];
    context.fillRect(left + index.get(link.target) * cell, left + index.get(link.source) * cell, Math.max(1, cell - 1), Math.max(1, cell - 1));
    if (cell >= 18) {
      context.fillStyle = "#fff"; context.font = "11px system-ui, sans-serif"; context.textAlign = "center"; context.textBaseline = "middle";
      context.fillText(link.channels, left + (index.get(link.target) + 0.5) * cell, left + (index.get(link.source) + 0.5) * cell);
    }
  }
  const ended = ["stuck", "failed", "died", "silent"];
  const stageColour = (row) => (ended.includes(row.state) ? style("--error") : STAGES[row.stage] || (row.stage.startsWith("proxy ") ? STAGES.connect : style("--line")));
  for (const [rank, row] of stages) { // on the diagonal, how far the rank came
    const at = left + index.get(rank) * cell + Math.max(1, cell - 1) / 2, size_ = Math.max(1, cell * 0.36);
    context.fillStyle = stageColour(row);
    context.beginPath(); context.arc(at, at, size_, 0, 7); context.fill();
  }
  context.fillStyle = style("--dim"); context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(22 / cell));
  ranks.forEach((rank, at) => {
    if (at % every) return;
    context.textAlign = "right"; context.fillText(rank, left - 4, left + (at + 0.5) * cell);
    context.textAlign = "center"; context.fillText(rank, left + (at + 0.5) * cell, left - 8);
  });
  $("matrix-legend").replaceChildren(...vias.map((via, at) => make("span", {}, swatch(palette[at % palette.length]), via)),
    make("span", {}, "row: sender, column: receiver; the number counts channels"),
    ...[...new Map([...stages.values()].map((row) => [`${row.stage}${ended.includes(row.state) ? `, ${row.state}` : ""}`, row]))].map(([label, row]) =>
      make("span", {}, swatch(stageColour(row)), `dot: ${label}`)));
  const under = (event) => {
    const scale = canvas.clientWidth / (left + size + 6) || 1;
    const column = Math.floor((event.offsetX / scale - left) / cell), row = Math.floor((event.offsetY / scale - left) / cell);
    return row < 0 || column < 0 || row >= ranks.length || column >= ranks.length ? null : [ranks[row], ranks[column]];
  };
  canvas.onpointermove = (event) => {
    const pair = under(event), tip = $("tip");
    if (!pair) { tip.hidden = true; return; }
    const links = cells.get(pair.join(",")) || [], own = pair[0] === pair[1] && stages.get(pair[0]);
    if (own) {
      tip.replaceChildren(make("b", {}, `rank ${own.rank}`), make("div", {}, `reached ${own.stage}, ${own.state}`));
    } else
    tip.replaceChildren(make("b", {}, `rank ${pair[0]} to rank ${pair[1]}`), ...(links.length ? links.map((link) => make("div", {}, `${link.channels} ${link.channels === 1 ? "channel" : "channels"} via ${link.via}`)) : [make("div", {}, "no line shows a channel")]));
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`; tip.style.top = `${event.clientY + 16}px`;
  };
  canvas.onpointerleave = () => { $("tip").hidden = true; };
  canvas.onclick = (event) => { const pair = under(event), link = pair && (cells.get(pair.join(",")) || [])[0]; if (link) openPlace(link.file, link.line); };
};
const graph = () => {
  const svg = $("graph");
  if (!svg) return;
  const names = [...new Set(story.graph.flatMap((edge) => [edge.from, edge.to]))];
  const ns = "http://www.w3.org/2000/svg", width = 620, height = Math.min(440, 110 + names.length * 26), most = 30;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const targets = new Map();
  for (const edge of story.graph) targets.set(edge.to, (targets.get(edge.to) || 0) + (edge.from === edge.to ? 0 : 1));
  const place_ = new Map();
  // those that others wait for in the middle, the others around them
  const middle = names.filter((name) => targets.get(name) && targets.get(name) === Math.max(...targets.values())).slice(0, 1);
  const around = names.filter((name) => !middle.includes(name));
  middle.forEach((name) => place_.set(name, [width / 2, height / 2]));
  around.forEach((name, at) => {
    const angle = (2 * Math.PI * at) / Math.max(around.length, 1) - Math.PI; // the first on the left
    place_.set(name, [width / 2 + (width / 2 - 110) * Math.cos(angle), height / 2 + (height / 2 - 28) * Math.sin(angle)]);
  });
  const put = (tag, attributes, text) => {
    const node = document.createElementNS(ns, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
    return node;
  };
  const marker = put("defs", {}), head = document.createElementNS(ns, "marker"), tip = document.createElementNS(ns, "path");
  for (const [name, value] of Object.entries({ id: "head", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" })) head.setAttribute(name, value);
  tip.setAttribute("d", "M0 0L10 5L0 10Z"); tip.setAttribute("fill", "#d55e00"); head.append(tip); marker.append(head);
  for (const edge of story.graph) {
    const [x1, y1] = place_.get(edge.from), [x2, y2] = place_.get(edge.to);
    if (edge.from === edge.to) {
      put("path", { d: `M${x1 - 16} ${y1 - 14}C${x1 - 50} ${y1 - 62} ${x1 + 50} ${y1 - 62} ${x1 + 16} ${y1 - 14}`, fill: "none", stroke: "#d55e00", "stroke-width": 1.6,
        "stroke-dasharray": edge.proven ? "" : "5 4", "marker-end": "url(#head)" });
      put("text", { x: x1, y: y1 - 56, "text-anchor": "middle" }, edge.step);
      continue;
    }
    const length = Math.hypot(x2 - x1, y2 - y1) || 1, cut = 34;
    put("line", { x1: x1 + ((x2 - x1) * cut) / length, y1: y1 + ((y2 - y1) * 18) / length, x2: x2 - ((x2 - x1) * cut) / length, y2: y2 - ((y2 - y1) * 20) / length,
      stroke: "#d55e00", "stroke-width": 1.6, "stroke-dasharray": edge.proven ? "" : "5 4", "marker-end": "url(#head)" });
    const label = put("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 5, "text-anchor": "middle" }, edge.step);
    label.style.paintOrder = "stroke"; label.style.stroke = style("--bg"); label.style.strokeWidth = 4;
  }
  for (const name of names) {
    const [x, y] = place_.get(name), blamed = story.blamedNames.includes(name), shown = name.length > most ? `${name.slice(0, most)}\u2026` : name, wide = Math.max(46, shown.length * 6.6 + 14);
    put("rect", { x: x - wide / 2, y: y - 12, width: wide, height: 24, rx: 12, fill: style(blamed ? "--error" : "--panel"), stroke: style("--line") });
    const text = put("text", { x, y: y + 4, "text-anchor": "middle" }, shown);
    if (blamed) { text.style.fill = style("--bg"); text.style.fontWeight = 700; }
  }
};

// ---- start ------------------------------------------------------------------------------------------------------
const start = async () => {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-place]");
    if (!link) return;
    event.preventDefault();
    const [file, line] = link.dataset.place.split(":").map(Number);
    openPlace(file, line);
  });
  if ($("timeline")) {
    const packed = await columns();
    const data = { ...packed };
    data.markAt = sums(packed.markAt, packed.markStart, story.scale);
    data.markLine = sums(packed.markLine, packed.markStart, 1);
    data.spanBegin = sums(packed.spanBegin, packed.spanStart, story.scale);
    data.spanEnd = Float64Array.from(packed.spanLength, (length, at) => data.spanBegin[at] + length * story.scale);
    data.arrowTail = Float64Array.from(packed.arrowTail, (at) => at * story.scale);
    data.arrowHead = Float64Array.from(packed.arrowHead, (at) => at * story.scale);
    timeline = new Timeline(data);
    legend();
    let waiting = 0;
    $("search").addEventListener("input", (event) => { clearTimeout(waiting); waiting = setTimeout(() => search(event.target.value), 200); });
    $("search").addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); } });
    $("ranks-filter").addEventListener("input", (event) => filter(event.target.value));
    $("all").addEventListener("click", () => timeline.show(-timeline.pad, timeline.end + timeline.pad));
    $("open").addEventListener("click", () => { timeline.open = new Set(timeline.tops); timeline.layout(); });
    $("close").addEventListener("click", () => { timeline.open = new Set(); timeline.layout(); });
    const proof = story.pins.find((pin) => pin.first);
    $("proof").hidden = !proof;
    $("proof").addEventListener("click", () => openPlace(proof.file, proof.line));
    $("zoom-in").addEventListener("click", () => timeline.zoom(0.5));
    $("zoom-out").addEventListener("click", () => timeline.zoom(2));
    addEventListener("keydown", (event) => {
      if (event.target.closest("input") || event.ctrlKey || event.metaKey || event.altKey) { if (event.key === "Escape") event.target.blur(); return; }
      const by = (timeline.to - timeline.from) * 0.2;
      const keys = {
        "+": () => timeline.zoom(0.6), "=": () => timeline.zoom(0.6), "-": () => timeline.zoom(1 / 0.6), 0: () => timeline.show(-timeline.pad, timeline.end + timeline.pad),
        ArrowLeft: () => timeline.show(timeline.from - by, timeline.to - by), ArrowRight: () => timeline.show(timeline.from + by, timeline.to + by),
        "/": () => $("search").focus(), n: () => next(1), N: () => next(-1), ",": () => timeline.neighbour(-1), ".": () => timeline.neighbour(1),
        d: turn, Escape: () => timeline.select(null),
      };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
    addEventListener("hashchange", recall);
  }
  let closed = [];
  addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open])")]; for (const part of closed) part.open = true; if (timeline) timeline.draw(); });
  addEventListener("afterprint", () => { for (const part of closed) part.open = false; });
  paint = () => { if (timeline) { timeline.request(); legend(); } matrix(); const svg = $("graph"); if (svg) { svg.replaceChildren(); graph(); } };
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (timeline) {
    await recall();
    timeline.draw();
  }
  root.dataset.ready = "yes";
};
start().catch((error) => {
  const note = make("p", { class: "s-error" }, `This page could not draw its timeline: ${error.message}. It needs a browser of 2023 or later.`);
  document.querySelector("main").prepend(note);
  root.dataset.ready = "failed";
});
