// Draws a timeline on a canvas: rows, spans, marks, arrows; moves, zooms, finds what is under the pointer.
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
