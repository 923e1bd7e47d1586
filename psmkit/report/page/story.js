// Draws the story that the page carries.
(() => {
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

// ---- the timeline -----------------------------------------------------------------------------------------------
class Timeline {
  constructor(data) {
    Object.assign(this, data);
    this.tracks = story.tracks;
    this.kinds = story.kinds;
    this.children = this.tracks.map(() => []);
    this.tracks.forEach((track, at) => { if (track.parent >= 0) this.children[track.parent].push(at); });
    this.tops = this.tracks.map((_, at) => at).filter((at) => this.tracks[at].parent < 0);
    this.loud = this.tracks.map(() => []); // marks that report an error or a warning
    for (let track = 0; track < this.tracks.length; track++) {
      for (let at = this.markStart[track]; at < this.markStart[track + 1]; at++) {
        const level = this.kinds[this.markKind[at]].level;
        if (level === "error" || level === "warning") this.loud[track].push(at);
      }
    }
    this.end = 1;
    for (let track = 0; track < this.tracks.length; track++) {
      if (this.markStart[track + 1] > this.markStart[track]) this.end = Math.max(this.end, this.markAt[this.markStart[track + 1] - 1]);
      for (let at = this.spanStart[track]; at < this.spanStart[track + 1]; at++) this.end = Math.max(this.end, this.spanEnd[at]);
    }
    this.pins = this.tracks.map(() => []); // lines that findings rest on
    const pins = new Map(story.pins.map((pin) => [pin.file * 1e9 + pin.line, pin]));
    for (let track = 0; pins.size && track < this.tracks.length; track++) {
      for (let at = this.markStart[track]; at < this.markStart[track + 1]; at++) {
        const pin = pins.get(this.markFile[at] * 1e9 + this.markLine[at]);
        if (pin) this.pins[track].push({ at, pin });
      }
    }
    this.pad = timed ? this.end * 0.01 + 1e-9 : Math.max(1, this.end * 0.01);
    this.from = -this.pad;
    this.to = this.end + this.pad;
    this.open = new Set(this.tops.length <= 8 ? this.tops : []);
    this.ranks = null;
    this.hidden = new Set();
    this.hits = new Map(); // track -> places that a search found
    this.selected = null;
    this.left = Math.min(230, Math.max(120, Math.round(innerWidth * 0.17)));
    this.canvas = $("rows");
    this.axisCanvas = $("axis");
    this.mini = $("mini");
    this.scroll = $("scroll");
    this.layout();
    this.listen();
    const blamed = this.rows.find((row) => story.blamed.includes(row.track));
    if (blamed && blamed.y > this.view()) this.scroll.scrollTop = blamed.y - this.view() / 2;
  }

  layout() {
    this.rows = [];
    let y = 0;
    const shown = this.tops.filter((top) => this.ranks === null || (this.tracks[top].rank !== null && this.ranks.has(this.tracks[top].rank)));
    const many = shown.length;
    this.tall = many > 300 ? 4 : many > 120 ? 7 : many > 40 ? 13 : 24;
    for (const top of shown) {
      const open = this.open.has(top);
      const height = open ? 24 : this.tall;
      this.rows.push({ track: top, y, height, top: true });
      y += height + (this.tall > 7 || open ? 2 : 1);
      if (open) for (const child of this.children[top]) { this.rows.push({ track: child, y, height: 17, top: false }); y += 18; }
    }
    this.full = Math.max(y, 30);
    this.rowOf = new Map(this.rows.map((row) => [row.track, row]));
    this.scroll.style.height = `${Math.min(this.full + 2, Math.round(innerHeight * 0.66))}px`;
    this.canvas.parentElement.querySelector(".filler").style.height = `${Math.max(0, this.full - this.view())}px`;
    this.request();
  }
  view() { return this.scroll.clientHeight || Math.min(this.full, innerHeight * 0.66); }
  request() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }
  size(canvas, height) {
    const width = canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return [context, width];
  }
  x(at) { return this.left + ((at - this.from) / (this.to - this.from)) * (this.width - this.left - 8); }
  at(x) { return this.from + ((x - this.left) / (this.width - this.left - 8)) * (this.to - this.from); }

  draw() {
    const height = this.view();
    const [context, width] = this.size(this.canvas, height);
    this.width = width;
    this.colours = { text: style("--text"), dim: style("--dim"), lane: style("--lane"), line: style("--line"), mark: style("--mark"),
      error: style("--error"), warning: style("--warning"), bg: style("--bg"), select: style("--select"), accent: style("--accent"), wait: style("--wait") };
    const offset = this.scroll.scrollTop;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const row of this.rows) {
      const y = row.y - offset;
      if (y + row.height < 0 || y > height) continue;
      this.drawRow(context, row, y);
    }
    this.drawArrows(context, offset, height);
    this.drawNames(context, offset, height);
    this.drawAxis();
    this.drawMini();
  }
  drawRow(context, row, y) {
    const right = this.width - 8;
    context.fillStyle = this.colours.lane;
    context.fillRect(this.left, y, right - this.left, row.height);
    context.save();
    context.beginPath(); context.rect(this.left, y, right - this.left, row.height); context.clip();
    this.drawSpans(context, row, y);
    if (row.top && !this.open.has(row.track)) {
      for (const child of this.children[row.track]) this.drawLoud(context, child, y, row.height);
    } else if (!row.top) this.drawMarks(context, row, y);
    this.drawLoud(context, row.track, y, row.height);
    for (const track of this.within(row)) {
      for (const { at, pin } of this.pins[track]) {
        context.fillStyle = this.colours[pin.level];
        context.globalAlpha = pin.first ? 1 : 0.5;
        context.fillRect(this.x(this.markAt[at]) - 1, y, pin.first ? 2.5 : 1.2, row.height);
        context.globalAlpha = 1;
      }

      for (const at of this.hits.get(track) || []) {
        context.fillStyle = this.colours.accent;
        context.fillRect(this.x(at) - 1, y, 2.5, row.height);
      }
    }
    context.restore();
    const chosen = this.selected;
    if (chosen && this.visibleRow(chosen.track) === row) {
      context.strokeStyle = this.colours.accent; context.lineWidth = 2;
      const x = Math.max(this.left, this.x(chosen.begin)), wide = Math.max(3, this.x(chosen.end) - x);
      context.strokeRect(x - 1, y + 1, wide + 2, row.height - 2);
    }
  }
  /** The tracks that a row shows: those of a closed rank, too. */
  within(row) { return row.top && !this.open.has(row.track) ? [row.track, ...this.children[row.track]] : [row.track]; }
  visibleRow(track) { return this.rowOf.get(track) || this.rowOf.get(this.tracks[track].parent); }
  drawSpans(context, row, y) {
    const from = this.spanStart[row.track], to = this.spanStart[row.track + 1];
    let last = -1e9, lastKind = -1;
    for (let at = from; at < to; at++) {
      if (this.spanEnd[at] < this.from) continue;
      if (this.spanBegin[at] > this.to) break;
      const kind = this.kinds[this.spanKind[at]];
      if (this.hidden.has(kind.group)) continue;
      const x = Math.max(this.x(this.spanBegin[at]), this.left - 2), end = Math.min(this.x(this.spanEnd[at]), this.width);
      const wide = Math.max(end - x, 1.5);
      if (wide < 2 && x - last < 0.8 && lastKind === this.spanKind[at]) continue;
      last = x; lastKind = this.spanKind[at];
      const waits = kind.group === "wait", thin = kind.group === "init" || kind.inside; // beside other spans
      const top = waits ? y + row.height * 0.55 : thin ? y + row.height - 4 : y + (row.top ? 0 : 1);
      const tall = waits ? row.height * 0.45 : thin ? 4 : row.top ? row.height : row.height - 2;
      context.fillStyle = waits ? this.colours.wait : colourOf(kind);
      context.globalAlpha = kind.group === "stage" ? (root.dataset.theme === "dark" ? 0.62 : 0.5) : 0.85;
      if (waits) this.hatch(context, x, top, wide, tall);
      else context.fillRect(x, top, wide, tall);
      context.globalAlpha = 1;
      if (this.spanOpen[at] && !waits) { // no line shows its end
        context.strokeStyle = this.colours.error; context.setLineDash([3, 3]); context.lineWidth = 1.4;
        context.strokeRect(x + 0.7, top + 0.7, Math.max(wide - 1.4, 1), tall - 1.4); context.setLineDash([]);
      }
      if (waits && row.top && row.height > 20 && wide > 60) {
        const label = story.labels[this.spanLabel[at]];
        context.font = "11px system-ui, sans-serif";
        const long = Math.min(context.measureText(label).width + 8, wide - 4);
        context.fillStyle = this.colours.bg; context.fillRect(x + 2, top - 3, long, tall + 3);
        this.label(context, label, x + 6, top + tall / 2 - 1, long - 4, 13);
      } else if (tall >= 9 && wide > 34 && !waits) {
        const label = kind.group === "stage" ? kind.label : story.labels[this.spanLabel[at]];
        this.label(context, label, Math.max(x, this.left) + 4, top + tall / 2, Math.min(end, this.width - 8) - Math.max(x, this.left) - 8, tall);
      }
    }
  }
  hatch(context, x, y, wide, tall) {
    context.globalAlpha = 0.3; context.fillRect(x, y, wide, tall); context.globalAlpha = 1;
    context.save(); context.beginPath(); context.rect(x, y, wide, tall); context.clip();
    context.strokeStyle = this.colours.wait; context.lineWidth = 1.3; context.beginPath();
    for (let at = x - tall; at < x + wide; at += 6) { context.moveTo(at, y + tall); context.lineTo(at + tall, y); }
    context.stroke(); context.restore();
  }
  label(context, text, x, y, room, tall) {
    if (room < 18) return;
    context.fillStyle = this.colours.text;
    context.font = `${Math.min(11.5, tall - 2)}px system-ui, sans-serif`;
    let shown = text;
    const fits = (part) => context.measureText(part).width <= room;
    if (!fits(shown)) {
      let low = 0, high = shown.length;
      while (low < high) { const middle = (low + high + 1) >> 1; if (fits(`${text.slice(0, middle)}\u2026`)) low = middle; else high = middle - 1; }
      if (low < 3) return;
      shown = `${text.slice(0, low)}\u2026`;
    }
    context.fillText(shown, x, y + 0.5);
  }
  drawMarks(context, row, y) {
    const from = this.markStart[row.track], to = this.markStart[row.track + 1];
    let at = lower(this.markAt, this.from, from, to);
    const end = lower(this.markAt, this.to, at, to);
    context.fillStyle = this.colours.mark;
    const step = (this.to - this.from) / (this.width - this.left);
    const dense = end - at > 3 * (this.width - this.left);
    while (at < end) {
      const next = dense ? lower(this.markAt, this.markAt[at] + step, at + 1, end) : at + 1;
      const kind = this.kinds[this.markKind[at]];
      if (dense || !this.hidden.has(kind.group)) {
        context.globalAlpha = Math.min(1, 0.4 + 0.15 * (next - at));
        context.fillRect(this.x(this.markAt[at]) - 0.5, y + 4, 1.4, row.height - 8);
      }
      at = next;
    }
    context.globalAlpha = 1;
  }
  drawLoud(context, track, y, tall) {
    let last = -1e9;
    const marks = this.loud[track];
    for (const at of marks) {
      const place_ = this.markAt[at];
      if (place_ < this.from || place_ > this.to) continue;
      const x = this.x(place_), level = this.kinds[this.markKind[at]].level;
      if (x - last < 1.2 && level === "warning") continue;
      last = x;
      context.fillStyle = level === "error" ? this.colours.error : this.colours.warning;
      context.beginPath();
      const r = Math.min(5, tall / 2), middle = y + tall / 2;
      if (level === "error") { context.moveTo(x - r, middle - r); context.lineTo(x + r, middle - r); context.lineTo(x, middle + r); }
      else { context.moveTo(x, middle - r); context.lineTo(x + r * 0.8, middle); context.lineTo(x, middle + r); context.lineTo(x - r * 0.8, middle); }
      context.fill();
    }
  }
  drawArrows(context, offset, height) {
    const shown = [], chosen = this.selected;
    for (let at = 0; at < this.arrowTail.length && shown.length <= 1500; at++) {
      if (this.arrowHead[at] < this.from && this.arrowTail[at] < this.from) continue;
      if (this.arrowTail[at] > this.to && this.arrowHead[at] > this.to) continue;
      if (this.hidden.has(this.kinds[this.arrowKind[at]].group)) continue;
      const one = this.visibleRow(this.arrowTailTrack[at]), other = this.visibleRow(this.arrowHeadTrack[at]);
      if (!one || !other || one === other) continue;
      shown.push([at, one, other]);
    }
    const crowded = shown.length > 1500;
    $("arrows-note").textContent = crowded ? "Too many arrows here: zoom in, or choose ranks, to see them." : "";
    context.save();
    context.beginPath(); context.rect(this.left, 0, this.width - this.left - 8, height); context.clip();
    for (const [at, one, other] of crowded ? [] : shown) {
      const x1 = this.x(this.arrowTail[at]), x2 = this.x(this.arrowHead[at]);
      const y1 = one.y - offset + one.height / 2, y2 = other.y - offset + other.height / 2;
      if (Math.max(y1, y2) < 0 || Math.min(y1, y2) > height) continue;
      const mine = chosen && chosen.arrows && chosen.arrows.has(at);
      context.strokeStyle = mine ? this.colours.accent : colourOf(this.kinds[this.arrowKind[at]]);
      context.fillStyle = context.strokeStyle;
      context.globalAlpha = mine ? 1 : 0.75; context.lineWidth = mine ? 2.4 : 1.1;
      context.beginPath(); context.moveTo(x1, y1); context.lineTo(x2, y2); context.stroke();
      const angle = Math.atan2(y2 - y1, x2 - x1), size = mine ? 7 : 5;
      context.beginPath(); context.moveTo(x2, y2);
      context.lineTo(x2 - size * Math.cos(angle - 0.45), y2 - size * Math.sin(angle - 0.45));
      context.lineTo(x2 - size * Math.cos(angle + 0.45), y2 - size * Math.sin(angle + 0.45)); context.fill();
    }
    context.restore();
    context.globalAlpha = 1;
  }
  drawNames(context, offset, height) {
    context.fillStyle = this.colours.bg;
    context.fillRect(0, 0, this.left - 1, height);
    let free = -1e9;
    const blames = this.rows.filter((row) => row.top && story.blamed.includes(row.track)).map((row) => row.y - offset + row.height / 2);
    for (const row of this.rows) {
      const y = row.y - offset;
      if (y + row.height < 0 || y > height) continue;
      const middle = y + row.height / 2, mine = blames.includes(middle);
      if (!mine && (middle - free < 12 || blames.some((other) => Math.abs(other - middle) < 12))) continue;
      free = middle;
      const track = this.tracks[row.track];
      const blamed = row.top && story.blamed.includes(row.track);
      context.fillStyle = blamed ? this.colours.error : row.top ? this.colours.text : this.colours.dim;
      const arrow = row.top && this.children[row.track].length ? (this.open.has(row.track) ? "\u25be " : "\u25b8 ") : row.top ? "" : "    ";
      context.font = `${row.top ? (blamed ? 700 : 600) : 400} 12px system-ui, sans-serif`;
      this.plain(context, arrow + (blamed ? "\u2716 " : "") + track.name, 6, middle, this.left - 12);
    }
  }
  plain(context, text, x, y, room) {
    let shown = text;
    while (shown.length > 4 && context.measureText(shown).width > room) shown = `${shown.slice(0, -2)}\u2026`;
    context.fillText(shown, x, y);
  }
  ticks(width) {
    const wanted = Math.max(3, Math.floor((width - this.left) / 110)), range = this.to - this.from;
    let step = 10 ** Math.floor(Math.log10(range / wanted));
    for (const factor of [1, 2, 5, 10]) if (range / (step * factor) <= wanted) { step *= factor; break; }
    if (!timed) step = Math.max(1, Math.round(step));
    const out = [];
    for (let at = Math.ceil(Math.max(this.from, 0) / step) * step; at <= this.to; at += step) out.push(at);
    return out;
  }
  drawAxis() {
    const [context, width] = this.size(this.axisCanvas, 26);
    context.font = "11.5px system-ui, sans-serif"; context.textBaseline = "middle"; context.fillStyle = this.colours.dim;
    context.fillText(timed ? "time" : story.axis.step === "place" ? "order of lines" : `order of ${story.axis.step}s`, 6, 13);
    for (const at of this.ticks(width)) {
      const x = this.x(at);
      context.fillStyle = this.colours.line; context.fillRect(x, 19, 1, 7);
      context.fillStyle = this.colours.dim; context.textAlign = "center";
      const text = timed ? (at === 0 ? "0" : duration(at)) : number(at);
      const half = context.measureText(text).width / 2;
      if (x - half > this.left && x + half < width) context.fillText(text, x, 11);
    }
    context.textAlign = "left";
  }
  drawMini() {
    const [context, width] = this.size(this.mini, 22);
    const span = width - this.left - 8, x = (at) => this.left + ((at + this.pad) / (this.end + 2 * this.pad)) * span;
    context.fillStyle = this.colours.lane; context.fillRect(this.left, 3, span, 16);
    context.fillStyle = this.colours.mark; context.globalAlpha = 0.55;
    if (!this.density) {
      this.density = new Float64Array(400);
      for (const at of this.markAt.length ? this.markAt : this.spanBegin) this.density[Math.min(399, Math.floor(((at + this.pad) / (this.end + 2 * this.pad)) * 400))]++;
      this.peak = Math.max(1, ...this.density);
    }
    this.density.forEach((count, n) => {
      const tall = 14 * Math.sqrt(count / this.peak);
      context.fillRect(this.left + (n / 400) * span, 18 - tall, span / 400 + 0.5, tall);
    });
    context.globalAlpha = 1;
    context.strokeStyle = this.colours.accent; context.lineWidth = 2;
    const one = Math.max(this.left, x(this.from)), other = Math.min(width - 8, x(this.to));
    context.strokeRect(one + 1, 3, Math.max(other - one - 2, 4), 16);
    context.font = "11.5px system-ui, sans-serif"; context.textBaseline = "middle"; context.fillStyle = this.colours.dim;
    context.fillText("overview", 6, 12);
  }

  zoom(factor, around) {
    const middle = around === undefined ? (this.from + this.to) / 2 : around;
    const least = timed ? 1e-8 : 2, range = Math.min(Math.max((this.to - this.from) * factor, least), this.end + 2 * this.pad);
    const share = (middle - this.from) / (this.to - this.from);
    this.show(middle - share * range, middle + (1 - share) * range);
  }
  show(from, to) {
    const range = Math.min(to - from, this.end + 2 * this.pad);
    this.from = Math.min(Math.max(from, -this.pad), this.end + this.pad - range);
    this.to = this.from + range;
    this.request(); remember();
  }
  listen() {
    const within = (event) => [event.offsetX, event.offsetY + this.scroll.scrollTop];
    this.canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) { event.preventDefault(); this.zoom(Math.exp(event.deltaY * 0.0022), this.at(event.offsetX)); }
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        const by = ((event.deltaX || event.deltaY) / (this.width - this.left)) * (this.to - this.from);
        this.show(this.from + by, this.to + by);
      }
    }, { passive: false });
    let drag = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, y: event.offsetY, from: this.from, to: this.to, top: this.scroll.scrollTop, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!drag) { this.hover(event, ...within(event)); return; }
      const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
      if (Math.abs(dx) + Math.abs(dy) > 4) drag.moved = true;
      if (!drag.moved) return;
      const by = (-dx / (this.width - this.left)) * (drag.to - drag.from);
      this.show(drag.from + by, drag.to + by);
      this.scroll.scrollTop = drag.top - dy;
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.click(...within(event));
      drag = null;
    });
    this.canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    this.canvas.addEventListener("dblclick", (event) => { if (event.offsetX > this.left) this.zoom(0.4, this.at(event.offsetX)); });
    this.scroll.addEventListener("scroll", () => this.request());
    addEventListener("resize", () => this.layout());
    const jump = (event) => {
      const span = this.mini.clientWidth - this.left - 8, at = ((event.offsetX - this.left) / span) * (this.end + 2 * this.pad) - this.pad;
      const half = (this.to - this.from) / 2;
      this.show(at - half, at + half);
    };
    this.mini.addEventListener("pointerdown", (event) => { this.mini.setPointerCapture(event.pointerId); jump(event); });
    this.mini.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
  }
  rowAt(y) { return this.rows.find((row) => y >= row.y && y < row.y + row.height); }
  /** What is under a pixel: a mark before the spans, the shortest span first. */
  under(x, y) {
    const row = this.rowAt(y);
    if (!row || x < this.left) return { row };
    const tracks = this.within(row);
    const reach = (4 / (this.width - this.left)) * (this.to - this.from), at = this.at(x);
    let best = null;
    for (const track of tracks) {
      if (row.top && track !== row.track) {
        for (const mark of [...this.loud[track], ...this.pins[track].map((pin) => pin.at)]) if (Math.abs(this.markAt[mark] - at) <= reach) best = this.mark(mark, track);
      } else if (!row.top) {
        const near = lower(this.markAt, at, this.markStart[track], this.markStart[track + 1]);
        for (const mark of [near - 1, near]) {
          if (mark < this.markStart[track] || mark >= this.markStart[track + 1]) continue;
          const distance = Math.abs(this.markAt[mark] - at);
          if (distance <= reach && (!best || distance < best.distance)) best = { ...this.mark(mark, track), distance };
        }
      }
    }
    let span = null;
    for (let n = this.spanStart[row.track]; n < this.spanStart[row.track + 1]; n++) {
      if (this.spanBegin[n] > at + reach) break;
      if (this.spanEnd[n] < at - reach || this.hidden.has(this.kinds[this.spanKind[n]].group)) continue;
      const length = this.spanEnd[n] - this.spanBegin[n];
      if (!span || length <= span.length) span = { ...this.span(n, row.track), length };
    }
    return { row, item: best || span, span };
  }
  mark(at, track) {
    const kind = this.kinds[this.markKind[at]];
    return { what: "mark", track, begin: this.markAt[at], end: this.markAt[at], kind, label: this.labelOf(at), file: this.markFile[at], line: this.markLine[at], index: at };
  }
  labelOf(at) { return (this.markLabel.length && story.labels[this.markLabel[at]]) || this.kinds[this.markKind[at]].label; }
  span(at, track) {
    const kind = this.kinds[this.spanKind[at]];
    return { what: "span", track, begin: this.spanBegin[at], end: this.spanEnd[at], kind, label: story.labels[this.spanLabel[at]], file: this.spanFile[at],
      line: this.spanLine[at], endFile: this.spanEndFile[at], endLine: this.spanEndLine[at], open: Boolean(this.spanOpen[at]), index: at };
  }
  hover(event, x, y) {
    const { row, item } = this.under(x, y), tip = $("tip");
    this.canvas.style.cursor = item || (row && x < this.left) ? "pointer" : "grab";
    if (!item) { tip.hidden = true; if (row && x < this.left) { tip.textContent = this.tracks[row.track].name; this.placeTip(event); } return; }
    const parts = [make("b", {}, item.label), make("div", {}, this.tracks[item.track].name)];
    if (item.what === "span") {
      const length = timed ? duration(item.end - item.begin) : "";
      parts.push(make("div", {}, item.open ? `from ${placeText(item.begin)}; no line shows its end` : `${placeText(item.begin)}${length ? `, ${length}` : ""}`));
    } else parts.push(make("div", {}, placeText(item.begin)));
    if (item.line) parts.push(make("div", { class: "dim" }, place(item.file, item.line)));
    tip.replaceChildren(...parts);
    this.placeTip(event);
  }
  placeTip(event) {
    const tip = $("tip");
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
  }
  click(x, y) {
    const { row, item } = this.under(x, y);
    if (row && row.top && x < this.left) { this.toggle(row.track); return; }
    if (item) this.select(item);
    else this.select(null);
  }
  toggle(track) {
    if (this.open.has(track)) this.open.delete(track);
    else this.open.add(track);
    this.layout(); remember();
  }
  select(item) {
    if (item) {
      item.arrows = new Set();
      for (let at = 0; at < this.arrowTail.length; at++) {
        const tail = this.arrowFile[at] === item.file && this.arrowLine[at] === item.line;
        const head = this.arrowHeadFile[at] === item.file && this.arrowHeadLine[at] === item.line;
        const end = item.what === "span" && this.arrowFile[at] === item.endFile && this.arrowLine[at] === item.endLine;
        if (tail || head || end) item.arrows.add(at);
      }
    }
    this.selected = item;
    this.request();
    drawer(item);
    remember();
  }
  /** Selects the mark of a line, and scrolls and zooms to it. */
  goTo(file, line) {
    for (let track = 0; track < this.tracks.length; track++) {
      for (let at = this.markStart[track]; at < this.markStart[track + 1]; at++) {
        if (this.markLine[at] !== line || this.markFile[at] !== file) continue;
        const parent = this.tracks[track].parent;
        if (parent >= 0 && !this.open.has(parent)) { this.open.add(parent); }
        if (this.ranks !== null && !this.rowOf.has(track)) { this.ranks = null; $("ranks-filter").value = ""; }
        this.layout();
        const half = Math.min((this.to - this.from) / 2, timed ? this.end / 20 : Math.max(40, this.end / 20)) || 1;
        if (this.markAt[at] < this.from || this.markAt[at] > this.to || this.to - this.from > half * 8) this.show(this.markAt[at] - half, this.markAt[at] + half);
        const row = this.visibleRow(track);
        if (row) this.scroll.scrollTop = Math.max(0, row.y - this.view() / 2);
        this.select(this.mark(at, track));
        return true;
      }
    }
    return false;
  }
  goToSpan(at, track) {
    if (at < 0) { // a mark
      const place_ = this.markAt[-1 - at], half = (this.to - this.from) / 2;
      if (place_ < this.from || place_ > this.to) this.show(place_ - half, place_ + half);
      this.select(this.mark(-1 - at, track));
      return;
    }
    const parent = this.tracks[track].parent, begin = this.spanBegin[at], length = this.spanEnd[at] - begin;
    if (parent >= 0 && !this.open.has(parent)) { this.open.add(parent); this.layout(); }
    if (begin < this.from || begin > this.to || length < (this.to - this.from) / 200) this.show(begin - length * 4 - 1e-9, begin + length * 5 + 1e-9);
    this.select(this.span(at, track));
  }
  /** Scrolls the page so that the row of a track is seen above ``bottom``. */
  reveal(track, bottom) {
    const row = this.visibleRow(track);
    if (!row) return;
    const top = this.canvas.getBoundingClientRect().top + row.y - this.scroll.scrollTop, head = 64;
    if (top < head || top + row.height > bottom - 8) scrollBy(0, top - Math.max(head, (bottom - row.height) / 2));
  }
  neighbour(by) {
    const item = this.selected;
    if (!item || item.what !== "mark") return;
    const at = item.index + by;
    if (at < this.markStart[item.track] || at >= this.markStart[item.track + 1]) return;
    if (this.markAt[at] < this.from || this.markAt[at] > this.to) { const half = (this.to - this.from) / 2; this.show(this.markAt[at] - half, this.markAt[at] + half); }
    this.select(this.mark(at, item.track));
  }
}

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
  const ranks = [...new Set(links_.flatMap((link) => [link.source, link.target]))].sort((a, b) => a - b);
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
  context.fillStyle = style("--dim"); context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(22 / cell));
  ranks.forEach((rank, at) => {
    if (at % every) return;
    context.textAlign = "right"; context.fillText(rank, left - 4, left + (at + 0.5) * cell);
    context.textAlign = "center"; context.fillText(rank, left + (at + 0.5) * cell, left - 8);
  });
  $("matrix-legend").replaceChildren(...vias.map((via, at) => make("span", {}, swatch(palette[at % palette.length]), via)),
    make("span", {}, "row: sender, column: receiver; the number counts channels"));
  const under = (event) => {
    const scale = canvas.clientWidth / (left + size + 6) || 1;
    const column = Math.floor((event.offsetX / scale - left) / cell), row = Math.floor((event.offsetY / scale - left) / cell);
    return row < 0 || column < 0 || row >= ranks.length || column >= ranks.length ? null : [ranks[row], ranks[column]];
  };
  canvas.onpointermove = (event) => {
    const pair = under(event), tip = $("tip");
    if (!pair) { tip.hidden = true; return; }
    const links = cells.get(pair.join(",")) || [];
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
})();
