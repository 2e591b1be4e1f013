// Plays what ./ladder watch has recorded: the tiles, bytes and warps of a kernel in time. window.movie is the movie or
// a promise of it; all times are in clocks, which movie.time says more of. What seldom changes is drawn once into a second canvas off
// the screen, what holds at a moment is found by binary search: so a frame stays cheap.
(async () => {
  const SECONDS = 20;  // that the whole takes at speed 1
  const SPEEDS = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8];
  const ZOOMS = 10;  // each shows half as much time
  const HEADS = 4;  // that are drawn
  const LINE = 18;  // height of a line of the source in pixels, as in watch_page.css
  const FONT = "12px system-ui, sans-serif";
  const WORDS = [
    ["m", "of a row: the largest score so far"], ["l", "of a row: the sum of e^(score − m) so far"],
    ["O~", "of a row: the sum of e^(score − m) V so far; O = O~ / l"], ["L", "of a row at the end: m + log l"],
    ["Br, Bc", "rows and keys of a tile"], ["BH", "heads of all batch entries"],
    ["Tr, Tc", "tiles of rows, tiles of keys"], ["live_i", "tiles of keys that some row of row tile i sees"],
    ["masked", "a tile in which the kernel asks, key by key, what a row sees"]];
  const HUES = ["page", "ink", "muted", "line", "card", "work", "watched", "yellow", "blue", "green", "purple",
    "vermillion"];
  // What a warp does: solid colours; what it waits for or what is on its way: stripes of the same colours.
  const LOOKS = {
    "loads": ["yellow"], "S = Q K^T": ["blue"], "softmax": ["green"], "O = P V": ["purple"], "stores": ["vermillion"],
    "other work": ["muted"], "waits for data": ["yellow", "/"], "waits at a barrier": ["muted", "\\"],
    "waits for a product": ["blue", "/"], "product in flight": ["blue", "-"], "load in flight": ["yellow", "-"],
    "dead": ["line", "."],
  };
  const ICONS = {
    play: "M3 1 14 8 3 15z", pause: "M2 1h4v14H2zM10 1h4v14h-4z", back: "M1 1h3v14H1zM15 1v14L5 8z",
    forth: "M12 1h3v14h-3zM1 1l10 7L1 15z",
  };
  const root = document.getElementById("watch");
  let movie;
  try {
    movie = await window.movie;
  } catch (problem) {
    root.textContent = `The movie cannot be read: ${problem}`;
    return;
  }
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const compact = new URLSearchParams(location.search).has("embed") || self !== top;
  const number = new Intl.NumberFormat("en-US").format;
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const sizeText = (bytes) => bytes < 1e7 ? number(bytes) : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const range = (first, end) => end - first > 1 ? `${first}–${end - 1}` : `${first}`;
  const tileText = (tile) => `rows ${range(tile[1], tile[2])}, keys ${range(tile[3], tile[4])}`;
  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

  // --- Elements, colours, canvases -----------------------------------------------------------------------------------

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (typeof value === "function") node.addEventListener(name, value); else node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const write = (node, text) => {  // a text that stays costs no layout
    if (node.shown === text) return;
    node.shown = text;
    node.textContent = text;
  };
  const card = (name, title, ...children) =>
    make("section", { class: `card ${name}`, "aria-label": title }, make("h2", {}, title), ...children);
  const icon = (name) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  const press = (label, act, inside = label) => {
    const node = make("button", { "aria-label": label, title: label, click: act });
    node.innerHTML = inside;
    // After a click with the mouse the space key shall still play and pause, not press this button again.
    node.addEventListener("pointerdown", (event) => event.preventDefault());
    return node;
  };

  let colour = {}, patterns = new Map();
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    colour = Object.fromEntries(HUES.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    patterns = new Map();
  };
  const STROKES = { "/": "M-2 2 2-2M0 8 8 0M6 10 10 6", "\\": "M-2 6 2 10M0 0 8 8M6-2 10 2", "-": "M0 2h8M0 6h8",
    ".": "M1 2h2M5 6h2" };
  // Stripes or dots of a colour; the fine pixels of a dense screen are used.
  const striped = (hue, strokes, ground = false) => {
    const key = hue + strokes + ground;
    if (!patterns.has(key)) {
      const scale = devicePixelRatio, tile = make("canvas", { width: 8 * scale, height: 8 * scale });
      const pen = tile.getContext("2d");
      pen.scale(tile.width / 8, tile.height / 8);
      if (ground) {
        pen.globalAlpha = 0.4;
        fill(pen, colour[hue], 0, 0, 8, 8);
        pen.globalAlpha = 1;
      }
      pen.strokeStyle = colour[hue === "yellow" ? "muted" : hue];  // yellow alone is pale on white
      pen.lineWidth = ground ? 1.5 : 2;
      pen.stroke(new Path2D(STROKES[strokes]));
      const pattern = pen.createPattern(tile, "repeat");
      pattern.setTransform(new DOMMatrix().scale(8 / tile.width, 8 / tile.height));
      patterns.set(key, pattern);
    }
    return patterns.get(key);
  };
  const lookOf = (kinds, kind) => LOOKS[kinds[kind]] ?? Object.values(LOOKS)[kind % 12];
  const fillOf = ([hue, strokes]) => strokes ? striped(hue, strokes, true) : colour[hue];

  // Two canvases: the shown one, and one off the screen that may be wider. Lengths are those of CSS.
  const surface = () => {
    const canvas = make("canvas", { role: "img", "aria-label": "" }), pen = canvas.getContext("2d");
    const store = make("canvas"), back = store.getContext("2d");
    const fit = (width, height, storeWidth = width) => {
      const scale = devicePixelRatio;
      canvas.style.height = height + "px";
      for (const [one, context, wide] of [[canvas, pen, width], [store, back, storeWidth]]) {
        one.width = Math.round(wide * scale);
        one.height = Math.round(height * scale);
        context.setTransform(scale, 0, 0, scale, 0, 0);
        context.font = FONT;
        context.textBaseline = "middle";
      }
    };
    const show = (x, width, height) => {
      if (store.width && store.height) pen.drawImage(store, x, 0, width, height);  // in a folded frame there is no room
    };
    return { canvas, pen, back, fit, show };
  };
  const fill = (pen, paint, ...box) => { pen.fillStyle = paint; pen.fillRect(...box); };
  const outline = (pen, paint, width, ...box) => {
    pen.strokeStyle = paint;
    pen.lineWidth = width;
    pen.strokeRect(...box);
  };
  const print = (pen, text, x, y, align = "left", hue = "ink") => {
    pen.fillStyle = colour[hue] ?? hue;
    pen.textAlign = align;
    pen.fillText(text, x, y);
  };

  // --- What holds at a moment ----------------------------------------------------------------------------------------

  // How many entries of a sorted array are at most `value`.
  const upper = (array, value) => {
    let low = 0, high = array.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (array[middle] <= value) low = middle + 1; else high = middle;
    }
    return low;
  };
  // The intervals, sorted by begin, that hold a moment: `reach` says where none of those before can.
  const spans = (begin, end) => {
    let most = -1;
    const reach = end.map((value) => (most = Math.max(most, value)));
    const at = (time) => {
      const found = [];
      for (let k = upper(begin, time) - 1; k >= 0 && reach[k] > time; k--) if (end[k] > time) found.push(k);
      return found.reverse();
    };
    const between = (first, last) => [upper(reach, first), upper(begin, last)];
    return { begin, end, at, between };
  };
  // A number that grows at the end of each row, [end, add]. It does not slide: what it shows was counted.
  const tally = (rows) => {
    const sorted = [...rows].sort((a, b) => a[0] - b[0]), ends = sorted.map((row) => row[0]);
    let sum = 0;
    const sums = [0, ...sorted.map((row) => (sum += row[1]))];
    return (time) => sums[upper(ends, time)];
  };
  const groups = (rows, key) => {
    const found = new Map();
    for (const row of rows) {
      if (!found.has(key(row))) found.set(key(row), []);
      found.get(key(row)).push(row);
    }
    return found;
  };

  const prepare = (rung) => {
    const { tiles, blocks, moves, bars, watched } = rung, model = { ...rung };
    model.watchedTile = (tile) => blocks[tile[8]]?.[2] === watched;
    model.working = spans(tiles.map((tile) => tile[6]), tiles.map((tile) => tile[7]));
    model.tileAt = (time) => model.working.at(time).map((index) => tiles[index]).find(model.watchedTile);
    model.byEnd = tiles.map((_, index) => index).sort((a, b) => tiles[a][7] - tiles[b][7]);
    model.tileEnds = model.byEnd.map((index) => tiles[index][7]);
    model.partsOf = groups(rung.parts ?? [], (part) => part[0]);
    model.moving = spans(moves.map((move) => move[0]), moves.map((move) => move[1]));
    const results = rung.buffers.map((name, buffer) => /^(O|L|d[QKV])$/.test(name) ? buffer : -1);
    model.written = new Set(moves.length ? moves.filter((move) => move[4]).map((move) => move[3]) : results);
    // What an error has left half done is seen to the end.
    model.moment = (time) => rung.error ? Math.min(time, rung.end - 0.5) : time;
    const mine = blocks.filter((block) => block[2] === watched).sort((a, b) => a[3] - b[3]);
    const blockBegins = mine.map((block) => block[3]);
    model.blockAt = (time) => {
      const block = mine[upper(blockBegins, time) - 1];
      return block && time < block[4] ? block : null;
    };
    // Shared memory holds the rows that the watched multiprocessor has read last, in the block that it runs.
    const myReads = moves.filter((move) => move[2] === watched && !move[4]).sort((a, b) => a[1] - b[1]);
    const reads = rung.buffers.map((_, buffer) => myReads.filter((move) => move[3] === buffer));
    const readEnds = reads.map((list) => list.map((move) => move[1]));
    model.held = (buffer, time) => {
      const block = model.blockAt(time), move = reads[buffer]?.[upper(readEnds[buffer], time) - 1];
      return block && move && move[0] >= block[3] ? move : null;
    };
    model.heldBuffers = (rung.shared ?? []).map(([name]) => rung.buffers.indexOf(name)).filter((buffer) => buffer >= 0);
    const ofKind = groups(moves, (move) => 3 * move[3] + move[4]);
    model.bytes = rung.buffers.map((_, buffer) => [0, 1, 2].map((way) =>
      tally((ofKind.get(3 * buffer + way) ?? []).map((move) => [move[1], move[8]]))));
    model.lanes = (rung.lanes ?? []).map((lane) => ({ ...lane, bars: [] }));
    (bars?.lane ?? []).forEach((lane, index) => model.lanes[lane]?.bars.push(index));
    for (const lane of model.lanes) {
      const begin = lane.bars.map((bar) => bars.begin[bar]);
      lane.spans = spans(begin, lane.bars.map((bar, k) => begin[k] + bars.length[bar]));
    }
    model.barAt = (lane, time) => {
      const found = model.lanes[lane]?.spans.at(time) ?? [];
      return found.length ? model.lanes[lane].bars[found[found.length - 1]] : -1;
    };
    model.kindAt = (lane, time) => bars.kind[model.barAt(lane, time)] ?? -1;
    const computes = new Set((rung.parts ?? []).map((part) => part[1]));
    model.chosen = Math.max(0, model.lanes.findIndex((_, lane) => computes.has(lane)));
    const { end, add, counter } = rung.deltas;
    const deltas = groups(end.map((_, k) => [end[k], add[k], counter[k]]), (row) => row[2]);
    model.values = rung.counters.map((_, which) => tally(deltas.get(which) ?? []));
    const times = (rung.row?.steps ?? []).map((step) => step[0]);
    // The last tile's numbers of the chosen row, and the factor by which a risen m rescales l and O~.
    model.rowAt = (time) => {
      const count = upper(times, time), step = rung.row?.steps[count - 1], before = rung.row?.steps[count - 2];
      const known = step && before && step[3] !== null && before[3] !== null;
      const [since, , , m = null, l = null, o = null] = step ?? [];
      return { count, m, l, o, since: step ? time - since : 0, factor: known ? Math.exp(before[3] - step[3]) : null };
    };
    return model;
  };

  // --- The head ------------------------------------------------------------------------------------------------------

  const headView = (rung) => {
    const state = make("span", { class: "state" });
    const launches = rung.launches.map(({ kernel, grid, warps, shared }) =>
      `${kernel}: grid ${grid.join(" × ")}, ${plural(warps, "warp")} a block, ${number(shared)} bytes shared`);
    const node = make("header", { class: "head" },
      make("h1", {}, `${rung.digits} `, make("span", { class: "muted" }, rung.title), " ", state),
      make("p", {}, rung.idea),
      make("p", { class: "small muted" }, [rung.problem, ...launches].join(" · ")), rung.note ?? "");
    if (rung.error)
      node.append(make("div", { class: "error", role: "alert" }, make("strong", {}, "An error ended the kernel"),
        ` at clock ${number(rung.end)}: `, make("code", {}, rung.error)));
    const words = (time) => {
      write(state, time < rung.end ? "" : `${rung.error ? "✕ stopped" : "✓ finished"} at ${number(rung.end)} clocks`);
    };
    return { node, words };
  };

  // --- The matrix ----------------------------------------------------------------------------------------------------

  const matrixView = (rung) => {
    const { canvas, pen, back, fit, show } = surface();
    const stage = make("div", { class: "stage" }, canvas);
    const more = rung.heads > HEADS ? ` and ${rung.heads - HEADS} more` : "";
    const key = (name, text) => make("span", {}, make("i", { class: name }), text);
    const name = compact ? `${rung.digits} ${rung.title}` : "The matrix S = Q Kᵀ";
    const node = card("matrix", name, stage, make("p", { class: "legend" },
      key("bright", "in work, with the number of its multiprocessor"),
      key("bright mine", `on the watched one, ${rung.watched}`), key("done", "done"), key("done masked", "masked part"),
      key("never", "never computed"), ...(rung.left_out.length ? [key("skipped", "left out by the block map")] : []),
      key("held", "at the margins: in its shared memory")));
    if (compact && rung.variant) node.firstChild.append(make("span", { class: "muted" }, rung.variant));
    const shown = Math.min(rung.heads, HEADS);
    // Rows of a key's buffer lie above the matrix, of a row's to the left; what is written below and to the right.
    const strips = { left: [], right: [], top: [], bottom: [] };
    rung.buffers.forEach((name, buffer) => {
      const sides = /^d?[KV]/.test(name) ? ["top", "bottom"] : ["left", "right"];
      const list = strips[sides[rung.written.has(buffer) ? 1 : 0]];
      const placed = rung.moves.some((move) => move[3] === buffer && move[5] >= 0);  // it is known which rows move
      if (placed && list.length < 3) list.push(buffer);
    });
    const edges = [[1, 2], [3, 4]].map(([low, high]) =>
      [...new Set(rung.tiles.flatMap((tile) => [tile[low], tile[high]]))].sort((a, b) => a - b));
    let width = 0, height = 0, frames = [], painted = 0, paintedEnd = false;

    // Where each head's matrix lies.
    const layout = (wide) => {
      width = wide;
      const columns = shown === 1 ? 1 : shown > 2 || width > 480 ? 2 : 1, room = 12;
      const left = (rung.Nq < 1000 ? 32 : 40) + room * strips.left.length, right = 8 + room * strips.right.length;
      const top = 36 + room * strips.top.length, bottom = 22 + room * strips.bottom.length;
      const ratio = clamp(rung.Nq / rung.Nk, 0.12, 1.25), tall = shown > 2 ? 250 : 520;  // so that it fits on a screen
      const w = Math.floor(Math.min(width / columns - left - right, tall / ratio)), h = Math.floor(w * ratio);
      const step = Math.floor(width / columns), lead = Math.floor((step - left - right - w) / 2);
      frames = Array.from({ length: shown }, (_, head) => {
        const x = (head % columns) * step + lead + left, y = Math.floor(head / columns) * (top + h + bottom) + top;
        return { x, y, w, h, head };
      });
      height = Math.ceil(shown / columns) * (top + h + bottom);
      fit(width, height);
      paintGround(0);
    };
    const box = (frame, i0, i1, j0, j1) => {
      const [x0, x1] = [j0, j1].map((j) => Math.round(frame.x + frame.w * j / rung.Nk));
      const [y0, y1] = [i0, i1].map((i) => Math.round(frame.y + frame.h * i / rung.Nq));
      return [x0, y0, x1 - x0, y1 - y0];
    };
    const upright = (side) => side === "left" || side === "right";
    const strip = (frame, buffer, row0, row1) => {
      for (const [side, list] of Object.entries(strips)) {
        const place = list.indexOf(buffer), away = 4 + 12 * place;
        if (place < 0) continue;
        const [x, y, w, h] = upright(side) ? box(frame, row0, row1, 0, 1) : box(frame, 0, 1, row0, row1);
        if (side === "left") return [frame.x - away - 9, y, 9, h];
        if (side === "right") return [frame.x + frame.w + away, y, 9, h];
        return side === "top" ? [x, frame.y - away - 9, w, 9] : [x, frame.y + frame.h + away, w, 9];
      }
      return null;
    };
    // Numbers at the edges of tiles, as many as there is room for.
    const ticks = (context, frame) => {
      const far = 12 * strips.left.length + 6;
      const roomy = (which, size, room) => {  // the ends and where sequences begin come first
        const found = [], first = rung.sequences.map((sequence) => sequence[2 * which]);
        for (const edge of [0, size.of, ...first, ...edges[which]])
          if (found.every((other) => Math.abs(other - edge) / size.of * size.pixels >= room)) found.push(edge);
        return found;
      };
      for (const i of roomy(0, { of: rung.Nq, pixels: frame.h }, 26)) {
        const y = frame.y + frame.h * i / rung.Nq;
        print(context, i, frame.x - far, clamp(y, frame.y + 5, frame.y + frame.h - 5), "right", "muted");
      }
      for (const j of roomy(1, { of: rung.Nk, pixels: frame.w }, 44)) {
        const x = frame.x + frame.w * j / rung.Nk;
        print(context, j, x, frame.y - 12 * strips.top.length - 11, j ? "center" : "left", "muted");
      }
    };
    // Where masks hide a part: the outlines of what rows see; and their lines, but for those at the edges of the matrix.
    const all = [[0, 0], [0, rung.Nq], [rung.Nk, 0], [rung.Nk, rung.Nq]].map(String);
    const hides = rung.seen.length > 1 || rung.seen[0].length !== 4 ||
      !rung.seen[0].every((corner) => all.includes(String(corner)));
    const at = (frame, [j, i]) => [frame.x + frame.w * j / rung.Nk, frame.y + frame.h * i / rung.Nq];
    const clipToHidden = (context, frame) => {
      context.beginPath();
      context.rect(frame.x, frame.y, frame.w, frame.h);
      for (const outline of rung.seen) {
        outline.forEach((corner, k) => context[k ? "lineTo" : "moveTo"](...at(frame, corner)));
        context.closePath();
      }
      context.clip("evenodd");
    };
    const strokeMasks = (context, frame) => {
      const isEdge = (a, b) => [[0, 0], [0, rung.Nk], [1, 0], [1, rung.Nq]].some(([k, end]) => a[k] === end && b[k] === end);
      context.beginPath();
      for (const outline of rung.seen) outline.forEach((corner, k) => {
        const next = outline[(k + 1) % outline.length];
        if (isEdge(corner, next)) return;
        context.moveTo(...at(frame, corner));
        context.lineTo(...at(frame, next));
      });
      context.stroke();
    };
    const paintDone = (index) => {
      const tile = rung.tiles[index], frame = frames[tile[0]];
      if (!frame) return;
      const [x, y, w, h] = box(frame, ...tile.slice(1, 5)), gap = w > 7 && h > 7 ? 1 : 0;
      fill(back, colour.page, x, y, w, h);
      back.globalAlpha = rung.watchedTile(tile) ? 0.5 : 0.4;
      fill(back, colour.work, x + gap, y + gap, w - gap, h - gap);
      back.globalAlpha = 1;
      if (!tile[5]) return;
      back.save();
      if (hides) clipToHidden(back, frame);
      back.globalAlpha = 0.75;
      fill(back, striped("muted", "/"), x + gap, y + gap, w - gap, h - gap);
      back.restore();
    };
    // The edges of tiles; of packed sequences each has its own.
    const paintGrid = (frame, i0, i1, j0, j1) => {
      const [x, y, w, h] = box(frame, i0, i1, j0, j1), [rows, keys] = [[i0, i1], [j0, j1]].map(([first, end], k) =>
        edges[k].filter((edge) => first <= edge && edge <= end));
      if (h / rows.length > 6)
        for (const i of rows) back.fillRect(x, Math.round(frame.y + frame.h * i / rung.Nq), w, 1);
      if (w / keys.length > 6)
        for (const j of keys) back.fillRect(Math.round(frame.x + frame.w * j / rung.Nk), y, 1, h);
    };
    // Everything that stays from frame to frame: the empty grids, then the tiles that are done.
    const paintGround = (time) => {
      back.clearRect(0, 0, width, height);
      paintedEnd = time >= rung.end;
      for (const frame of frames) {
        const top = frame.y - 12 * strips.top.length;
        print(back, rung.heads > 1 ? `head ${frame.head}` : "", frame.x, top - 26);
        print(back, "keys j →", frame.x + frame.w, top - 26, "right", "muted");
        print(back, "i ↓", frame.x - 12 * strips.left.length - 6, frame.y - 12, "right", "muted");
        if (frame.head === shown - 1 && more) print(back, more, frame.x + 52, top - 26, "left", "muted");
        ticks(back, frame);
        fill(back, colour.page, frame.x, frame.y, frame.w, frame.h);
        if (paintedEnd) fill(back, striped("line", "."), frame.x, frame.y, frame.w, frame.h);
        for (const [head, ...block] of rung.left_out)
          if (head === frame.head) fill(back, striped("line", "\\", true), ...box(frame, ...block));
        back.fillStyle = colour.line;
        for (const sequence of rung.sequences) paintGrid(frame, ...sequence);
        const low = frame.y + frame.h + 12 * strips.bottom.length + 12;
        for (const [side, list] of Object.entries(strips)) for (const buffer of list) {
          const [x, y, w, h] = strip(frame, buffer, 0, upright(side) ? rung.Nq : rung.Nk), name = rung.buffers[buffer];
          outline(back, colour.line, 1, x + 0.5, y + 0.5, w, h - 1);
          if (upright(side)) print(back, name, x + 5, low, "center"); else print(back, name, x - 4, y + 5, "right");
        }
      }
      painted = upper(rung.tileEnds, time);
      for (let k = 0; k < painted; k++) paintDone(rung.byEnd[k]);
    };
    const advance = (time) => {
      const count = upper(rung.tileEnds, time);
      if (count < painted || paintedEnd !== time >= rung.end) return paintGround(time);
      while (painted < count) paintDone(rung.byEnd[painted++]);
    };
    // A tile in work; in that of the watched multiprocessor each warp's part shows what the warp does.
    const drawTile = (index, time) => {
      const tile = rung.tiles[index], frame = frames[tile[0]], mine = rung.watchedTile(tile);
      if (!frame) return;
      const [x, y, w, h] = box(frame, ...tile.slice(1, 5));
      fill(pen, mine ? colour.watched : colour.work, x, y, w + 1, h + 1);
      if (mine && w > 12) drawParts(index, frame, time);
      if (mine) outline(pen, colour.ink, 2, x, y, w + 1, h + 1);
      const label = `${rung.blocks[tile[8]]?.[2] ?? ""}`, wide = 7 * label.length + 6;
      if (w < wide || h < 14) return;
      if (mine) fill(pen, colour.watched, x + w / 2 - wide / 2, y + h / 2 - 8, wide, 16);
      print(pen, label, x + w / 2 + 0.5, y + h / 2 + 1, "center", "#000");
    };
    const drawParts = (index, frame, time) => {
      for (const [, warp, i0, i1, j0, j1] of rung.partsOf.get(index) ?? []) {
        const kind = rung.kindAt(warp, time), [x, y, w, h] = box(frame, i0, i1, j0, j1), gap = h > 4 && w > 4 ? 1 : 0;
        const inside = [x + gap, y + gap, w - gap, h - gap];
        fill(pen, colour.page, ...inside);
        fill(pen, kind < 0 ? colour.watched : fillOf(lookOf(rung.kinds, kind)), ...inside);
      }
    };
    const placeOf = ([, , , buffer, , head, row0, row1]) => frames[head] && strip(frames[head], buffer, row0, row1);
    const drawStrips = (time) => {
      for (const buffer of rung.heldBuffers) {
        const move = rung.held(buffer, time), place = move && placeOf(move);
        if (!place) continue;
        pen.globalAlpha = 0.55;
        fill(pen, colour.watched, ...place);
        pen.globalAlpha = 1;
      }
      for (const index of rung.moving.at(time)) {
        const move = rung.moves[index], mine = move[2] === rung.watched, place = placeOf(move);
        if (!place) continue;
        fill(pen, mine ? colour.watched : colour.work, ...place);
        if (mine) outline(pen, colour.ink, 1.5, ...place);
      }
    };
    const drawLines = () => {
      for (const frame of frames) {
        outline(pen, colour.muted, 1, frame.x + 0.5, frame.y + 0.5, frame.w, frame.h);
        pen.strokeStyle = colour.ink;
        strokeMasks(pen, frame);
      }
      const frame = frames[rung.row?.head];
      if (!frame) return;
      const y = Math.min(frame.y + frame.h * (rung.row.row + 0.5) / rung.Nq, frame.y + frame.h - 1);
      fill(pen, colour.vermillion, frame.x, y - 1, frame.w, 2);
      pen.beginPath();
      pen.moveTo(frame.x + frame.w, y);
      pen.lineTo(frame.x + frame.w + 9, y - 5);
      pen.lineTo(frame.x + frame.w + 9, y + 5);
      pen.fill();
    };
    const draw = (clock) => {
      const time = rung.moment(clock);
      advance(time);
      pen.clearRect(0, 0, width, height);
      show(0, width, height);
      drawStrips(time);
      for (const index of rung.working.at(time)) drawTile(index, time);
      drawLines();
    };
    const say = (clock) => {
      const time = rung.moment(clock), tile = rung.tileAt(time);
      const done = upper(rung.tileEnds, time), working = rung.working.at(time).length;
      const where = tile ? `; multiprocessor ${rung.watched} computes ${tileText(tile)} of head ${tile[0]}` : "";
      return `Matrix of tiles: ${plural(done, "tile")} done, ${working} in work${where}.`;
    };
    return { node, stage, canvas, layout, draw, say };
  };

  // --- The memories --------------------------------------------------------------------------------------------------

  const memoryView = (rung) => {
    const rows = (names, header) => {
      const cells = names.map(() => header.slice(1).map(() => make("td")));
      const head = make("tr", {}, ...header.map((text) => make("th", { scope: "col" }, text)));
      const body = names.map((name, k) => make("tr", {}, make("th", { scope: "row" }, name), ...cells[k]));
      return { cells, node: make("table", {}, head, ...body) };
    };
    const adds = rung.moves.some((move) => move[4] === 2);
    const global = rows(rung.buffers, ["bytes", "read", "written", ...(adds ? ["added"] : [])]);
    const arrays = rung.shared ?? [], names = arrays.map(([name, , under]) => under ? `${name}, over ${under}` : name);
    const shared = rows(names, ["array", "bytes", "holds"]);
    arrays.forEach(([, bytes], k) => write(shared.cells[k][0], number(bytes)));
    const registers = rows(rung.registers ?? [], ["values", "of"]);
    const box = (title, inside) => make("div", { class: "box" }, make("h3", {}, title), inside);
    const boxes = [box("global memory, of all blocks", global.node),
      box("shared memory", arrays.length ? shared.node : make("p", { class: "muted small" }, "The kernel uses none.")),
      box("registers", registers.node)];
    const chips = Array.from({ length: 6 }, () => make("div", { class: "chip", hidden: "" }));
    const area = make("div", { class: "boxes" }, ...boxes, ...chips);
    const node = card("memory", `The memories of multiprocessor ${rung.watched}`, area);
    let places = null, arrows = [];

    const layout = () => {  // measured once, so that no frame has to
      const origin = area.getBoundingClientRect(), beside = boxes[1].offsetTop === boxes[0].offsetTop;
      // A label flies from the edge of global memory to the end of the line that will say what it brings.
      const place = (cell, edge) => {
        const rect = cell.getBoundingClientRect();
        return [(beside && edge ? rect.right + edge : rect.left + rect.width / 2) - origin.left,
          rect.top + rect.height / 2 - origin.top];
      };
      places = { global: global.cells.map((list) => place(list.at(-1), 10)),
        shared: shared.cells.map((list) => place(list[1], -44)),
        registers: registers.cells.map((list) => place(list[0], 0)) };
      arrows = beside ? ["→", "←", "←"] : ["↓", "↑", "↑"];
    };
    const way = ([, , , buffer, way]) => {
      const slot = arrays.findIndex(([name]) => name === rung.buffers[buffer]);
      const near = slot >= 0 ? places.shared[slot] : places.registers[0] ?? places.global[buffer];
      return way ? [near, places.global[buffer]] : [places.global[buffer], near];
    };
    const drawChip = (chip, move, time) => {
      const part = still.matches ? 0.5 : (time - move[0]) / (move[1] - move[0]), eased = part * part * (3 - 2 * part);
      const [[x0, y0], [x1, y1]] = way(move), rowsKnown = move[5] >= 0 ? ` ${range(move[6], move[7])}` : "";
      const x = x0 + (x1 - x0) * eased, y = y0 + (y1 - y0) * eased;
      chip.style.transform = `translate(${x}px, ${y}px) translate(-50%, -50%)`;
      write(chip, `${move[4] === 2 ? "+ " : ""}${rung.buffers[move[3]]}${rowsKnown} ${arrows[move[4]]}`);
      chip.classList.toggle("out", move[4] > 0);
    };
    const draw = (time) => {
      const now = rung.moment(time);
      const moves = rung.moving.at(now).map((index) => rung.moves[index]).filter((move) => move[2] === rung.watched);
      chips.forEach((chip, k) => {
        const move = moves[k];
        if (chip.hidden !== !move) chip.hidden = !move;
        if (move && places) drawChip(chip, move, now);
      });
    };
    const words = (time) => {
      global.cells.forEach((cells, buffer) => cells.forEach((cell, way) => {
        const bytes = Math.round(rung.bytes[buffer][way](time));
        write(cell, bytes ? sizeText(bytes) : "–");
      }));
      const now = rung.moment(time), running = rung.blockAt(now), tile = rung.tileAt(now);
      shared.cells.forEach((cells, k) => {
        const buffer = rung.buffers.indexOf(arrays[k][0]), move = buffer < 0 ? null : rung.held(buffer, now);
        const rest = buffer < 0 && running && tile ? "this tile" : "–";
        write(cells[1], move ? (move[5] < 0 ? "rows" : range(move[6], move[7])) : rest);
      });
      const all = tile ? tileText(tile) : "–", rowsOf = all.split(",")[0];
      registers.cells.forEach((cells, k) => {
        const name = rung.registers[k], ofTile = /^d?[SP]$/.test(name), ofBlock = name.startsWith("sums");
        write(cells[0], ofTile ? all : ofBlock ? (running ? "this block" : "–") : rowsOf);
      });
    };
    return { node, layout, draw, words };
  };

  // --- The chosen row ------------------------------------------------------------------------------------------------

  const rowView = (rung) => {
    const { canvas, pen, fit } = surface(), steps = rung.row.steps, hold = movie.end / 25;
    const m = make("b"), l = make("b"), factor = make("span", { class: "factor" });
    const [mName, lName, oName] = rung.row.names;
    // FlashAttention-1 keeps O divided: there the factor is that of l alone.
    const scaled = oName === "O~" ? "l and O~" : "l";
    const numbers = make("p", { class: "numbers" }, `${mName} = `, m, ` ${lName} = `, l, factor);
    const node = card("row", `Row ${rung.row.row} of head ${rung.row.head}, tile by tile`, numbers, canvas);
    const most = (values) => values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-9);
    const oMost = most(steps.flatMap((step) => step[5] ?? []));
    const scales = [3, 4].map((at) => {
      const known = steps.map((step) => step[at]).filter((value) => value !== null);
      return { low: Math.min(...known), size: Math.max(1e-9, Math.max(...known) - Math.min(...known)) };
    });
    let width = 0, drawn = "";
    const height = 150;
    const layout = (wide) => { width = wide; fit(width, height); drawn = ""; };
    const drawO = (o, x, w) => {
      const middle = height / 2 + 8, tall = height / 2 - 12;
      print(pen, `${oName}, ${o ? o.length : 0} of ${rung.d} numbers`, x, 8, "left", "muted");
      fill(pen, colour.line, x, middle, w, 1);
      (o ?? []).forEach((value, k) => {
        const size = tall * value / oMost, wide = w / o.length;
        fill(pen, value < 0 ? colour.vermillion : colour.blue, x + k * wide, Math.min(middle, middle - size),
          Math.max(1, wide - 1), Math.abs(size));
      });
    };
    const drawCurve = (at, count, x, w, hue, dash) => {
      const { low, size } = scales[at], wide = (w - 30) / Math.max(1, steps.length - 1), tall = height - 44;
      const known = steps.slice(0, count).map((step, k) => [k, step[3 + at]]).filter((point) => point[1] !== null);
      const points = known.map(([k, value]) => [x + 6 + wide * k, height - 14 - tall * (value - low) / size]);
      pen.strokeStyle = pen.fillStyle = colour[hue];
      pen.lineWidth = 2;
      pen.setLineDash(dash);
      pen.beginPath();
      for (const [px, py] of points) pen.lineTo(px, py);
      pen.stroke();
      pen.setLineDash([]);
      for (const [px, py] of points) pen.fillRect(px - 2, py - 2, 4, 4);
      return points.at(-1);
    };
    const draw = (time) => {
      const now = rung.rowAt(time), key = `${now.count}`;
      if (key === drawn) return;
      drawn = key;
      pen.clearRect(0, 0, width, height);
      const half = width / 2 - 12;
      drawO(now.o, 0, half);
      const x = half + 24;
      print(pen, "after each tile of keys", x, 8, "left", "muted");
      fill(pen, colour.line, x, height - 6, half, 1);
      const m = drawCurve(0, now.count, x, half, "blue", []);
      const l = drawCurve(1, now.count, x, half, "vermillion", [5, 4]);
      const away = m && l ? clamp(8 - Math.abs(m[1] - l[1]) / 2, 0, 8) : 0;  // so that two names do not meet
      const [up, down] = m && l && m[1] > l[1] ? [1, -1] : [-1, 1];
      if (m) print(pen, mName, m[0] + 7, m[1] + up * away);
      if (l) print(pen, lName, l[0] + 7, l[1] + down * away);
    };
    const short = (value) => value === null ? "–" : Math.abs(value) < 1000 ? value.toFixed(3) : value.toPrecision(5);
    const words = (time) => {
      const now = rung.rowAt(time), fresh = now.factor !== null && now.since < hold;
      write(m, short(now.m));
      write(l, short(now.l));
      write(factor, !fresh ? "" : now.factor < 1 ? `m rose: ${scaled} × ${now.factor.toFixed(2)}` : "m stays: × 1");
      factor.classList.toggle("risen", fresh && now.factor < 1);
    };
    const say = (time) => {
      const now = rung.rowAt(time);
      return `Row ${rung.row.row} after ${plural(now.count, "tile")}: m ${short(now.m)}, l ${short(now.l)}.`;
    };
    return { node, canvas, layout, draw, words, say };
  };

  // --- The counters --------------------------------------------------------------------------------------------------

  const countersView = (rung) => {
    const node = card("counters", "Counters");
    const rows = rung.counters.map((counter) => ({ counter, bar: make("i"), tick: make("span", { class: "tick" }),
      value: make("span", { style: `min-width: ${number(counter.total).length}ch` }) }));
    for (const [name, list] of groups(rows, (row) => row.counter.group)) {
      node.append(make("h3", {}, name));
      for (const { value, bar, tick, counter } of list)
        node.append(make("div", { class: "count" }, make("span", { class: "label" }, counter.label),
          make("span", { class: "share", "aria-hidden": "true" }, bar),
          make("span", { class: "value" }, value, ` / ${number(counter.total)}`), tick,
          make("span", { class: "form" }, counter.form)));
    }
    const draw = (time) => rows.forEach(({ bar, counter }, k) => {
      const share = (counter.total ? rung.values[k](time) / counter.total : time >= rung.end ? 1 : 0).toFixed(4);
      if (bar.share !== share) bar.style.transform = `scaleX(${bar.share = share})`;
    });
    const words = (time) => rows.forEach(({ value, tick, counter }, k) => {
      const now = rung.values[k](time);
      write(value, number(Math.round(now)));
      write(tick, counter.exact && time >= rung.end && now === counter.total ? "✓" : "");
    });
    return { node, draw, words };
  };

  // --- Time ----------------------------------------------------------------------------------------------------------

  const timeView = (rung, player) => {
    const { canvas, pen, back, fit, show } = surface(), { bars } = rung;
    const scale = make("span", { class: "small muted" });
    const buttons = make("span", { class: "zoom" }, scale, press("show more time (−)", () => player.zoom(-1), "−"),
      press("show less time, larger (+)", () => player.zoom(1), "+"),
      press("show the whole run", () => player.zoom(-ZOOMS), "whole run"));
    const used = [...new Set(bars?.kind ?? [])].sort((a, b) => a - b);
    const legend = used.map((kind) => {
      const swatch = make("canvas", { width: 44, height: 28, "aria-hidden": "true" });
      return { swatch, kind, node: make("span", {}, swatch, rung.kinds[kind]) };
    });
    const node = card("time", `Time, in ${movie.clocks}`, canvas, make("p", { class: "legend" }, ...legend.map((item) => item.node),
      make("span", {}, "pale: still to come")));
    const below = rung.lanes.length ? `; below, multiprocessor ${rung.watched}` : "";
    const title = `the blocks of ${plural(rung.multiprocessors, "multiprocessor")}${below}`;
    node.firstChild.append(make("span", { class: "muted" }, title), buttons);
    const thin = clamp(Math.floor(132 / rung.multiprocessors), 1, 7);
    const thick = clamp(Math.floor(240 / Math.max(1, rung.lanes.length)), 14, 20);
    const lanesTop = thin * rung.multiprocessors + 14;
    const axis = lanesTop + thick * rung.lanes.length + 4, height = axis + 20;
    let width = 0, left = 0, plot = 0, layer = null, frozen = null, doing = [];

    const view = (time) => {
      const span = movie.end / 2 ** player.zoomed;
      return frozen ?? { span, from: clamp(time - span / 2, 0, movie.end - span) };
    };
    const layout = (wide) => {
      width = wide;
      left = width < 560 ? 72 : 136;
      plot = width - left - (width < 560 || !rung.lanes.length ? 4 : 130);
      fit(width, height, plot * 2);
      layer = null;
      for (const { swatch, kind } of legend) {
        const box = swatch.getContext("2d");
        box.setTransform(2, 0, 0, 2, 0, 0);
        box.clearRect(0, 0, 22, 14);
        fill(box, fillOf(lookOf(rung.kinds, kind)), 0, 0, 22, 14);
      }
    };
    const mine = (block) => block[2] === rung.watched;
    const blocks = [...rung.blocks].sort((a, b) => mine(a) - mine(b));  // its row may cover others where rows are thin
    const paintBlocks = (x) => {
      for (const [launch, , where, begin, end] of blocks) {
        back.globalAlpha = launch % 2 ? 0.6 : 1;
        const x0 = x(begin), w = Math.max(0.6, x(end) - x0 - 1);
        if (where === rung.watched) fill(back, colour.watched, x0, where * thin, w, Math.max(3, thin - 1));
        else fill(back, colour.work, x0, where * thin, w, thin > 2 ? thin - 1 : thin);
      }
      back.globalAlpha = 1;
    };
    const paintBars = (x, first, last) => rung.lanes.forEach((lane, row) => {
      const [begin, end] = lane.spans.between(first, last), y = lanesTop + row * thick + 1;
      let full = -1;  // of many bars within a pixel one is enough
      for (let k = begin; k < end; k++) {
        const x0 = x(lane.spans.begin[k]), x1 = x(lane.spans.end[k]);
        if (x1 < full) continue;
        full = x1 - x0 < 1 ? x0 + 0.6 : -1;
        const look = lookOf(rung.kinds, bars.kind[lane.bars[k]]);
        const w = x1 - x0 > 4 ? x1 - x0 - 1 : Math.max(0.6, x1 - x0);
        fill(back, w < 3 ? colour[look[0]] : fillOf(look), x0, y, w, thick - 3);
      }
    });
    const paintAxis = (x, first, last) => {
      const rough = (last - first) / Math.max(2, layer.wide / 90), power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(1, power * [1, 2, 5, 10].find((factor) => factor * power >= rough));
      for (let clock = Math.max(0, Math.ceil(first / step) * step); clock <= Math.min(last, movie.end); clock += step) {
        fill(back, colour.line, x(clock), 0, 1, axis);
        const side = x(clock) < 20 ? "left" : x(clock) > layer.wide - 24 ? "right" : "center";
        print(back, number(clock), x(clock) + (side === "left" ? 1 : 0), axis + 10, side, "muted");
      }
    };
    // The second canvas holds the whole run, or twice what a window shows, so that it is painted seldom.
    const paint = ({ from, span }) => {
      layer = player.zoomed ? { from: from - span / 2, span: span * 2, wide: plot * 2 } : { from: 0, span, wide: plot };
      layer.zoom = player.zoomed;
      const x = (clock) => (clock - layer.from) / layer.span * layer.wide;
      back.clearRect(0, 0, plot * 2, height);
      paintAxis(x, layer.from, layer.from + layer.span);
      paintBlocks(x);
      paintBars(x, layer.from, layer.from + layer.span);
    };
    const covers = ({ from, span }) => layer && layer.zoom === player.zoomed && from >= layer.from &&
      from + span <= layer.from + layer.span;
    const draw = (time) => {
      const seen = view(time);
      if (!covers(seen)) paint(seen);
      const now = left + (time - seen.from) / seen.span * plot;
      pen.clearRect(0, 0, width, height);
      pen.save();
      pen.beginPath();
      pen.rect(left, 0, plot, height);
      pen.clip();
      show(left + (layer.from - seen.from) / seen.span * plot, plot * 2, height);
      pen.globalAlpha = 0.62;  // what is to come is pale
      fill(pen, colour.card, now, 0, left + plot - now, axis);
      pen.restore();
      drawNames();
      fill(pen, colour.ink, clamp(Math.round(now) - 1, left, left + plot - 2), 0, 2, axis);
    };
    const drawNames = () => {
      const last = rung.multiprocessors - 1, y = (row) => Math.max(6, (row + 0.5) * thin);
      print(pen, `${rung.watched} ▸`, left - 4, y(rung.watched), "right");
      for (const end of [0, last])
        if (Math.abs(y(end) - y(rung.watched)) > 12) print(pen, end, left - 8, y(end), "right", "muted");
      rung.lanes.forEach((lane, row) => {
        const middle = lanesTop + (row + 0.5) * thick, hue = row === rung.chosen ? "ink" : "muted";
        const role = lane.role && lane.role.length < 12 && left > 90 ? ` ${lane.role}` : "";
        if (row === rung.chosen) fill(pen, colour.watched, 0, middle - thick / 2 + 1, 4, thick - 3);
        print(pen, lane.name + role, 8, middle, "left", hue);
        if (plot + left < width - 20) print(pen, doing[row] ?? "", left + plot + 8, middle, "left", hue);
      });
    };
    const words = (time) => {
      doing = rung.lanes.map((_, lane) => rung.kinds[rung.kindAt(lane, rung.moment(time))] ?? "");
      write(scale, player.zoomed ? `${number(Math.round(movie.end / 2 ** player.zoomed))} clocks ` : "");
    };
    const say = (time) => {
      const busy = rung.blocks.filter((block) => block[3] <= time && time < block[4]).length;
      const warps = rung.lanes.map((lane, k) => [lane.name, rung.kinds[rung.kindAt(k, time)]]);
      const doings = warps.filter((pair) => pair[1]).map((pair) => pair.join(": "));
      return `Time: ${plural(busy, "block")} at work. ${doings.join("; ")}`;
    };

    const laneAt = (event) => {
      const row = Math.floor((event.offsetY - lanesTop) / thick);
      return row >= 0 && row < rung.lanes.length ? row : -1;
    };
    const clockAt = (event) => frozen.from + clamp((event.offsetX - left) / plot, 0, 1) * frozen.span;
    canvas.addEventListener("pointerdown", (event) => {
      if (laneAt(event) >= 0) player.choose(rung, laneAt(event));
      if (event.offsetX < left || event.button) return;
      frozen = view(player.time);  // the window stays while one drags in it
      canvas.setPointerCapture(event.pointerId);
      player.pause();
      player.seek(clockAt(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (frozen) return player.seek(clockAt(event));
      const lane = laneAt(event), seen = view(player.time);
      const clock = seen.from + (event.offsetX - left) / plot * seen.span;
      const kind = lane < 0 || event.offsetX < left ? "" : rung.kinds[rung.kindAt(lane, clock)];
      canvas.title = lane < 0 ? "" : [rung.lanes[lane].name, rung.lanes[lane].role, kind].filter(Boolean).join(": ");
    });
    const release = () => { frozen = null; player.redraw(); };
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, release);
    return { node, canvas, layout, draw, words, say };
  };

  // --- The source ----------------------------------------------------------------------------------------------------

  const sourceView = (rung, player) => {
    const lines = rung.source.html.map((text, k) => {
      const line = make("div", { "data-n": k + 1 });
      line.innerHTML = text || " ";
      return line;
    });
    const path = rung.source.path;
    const code = make("div", { class: "code", tabindex: "0", role: "region", "aria-label": path }, ...lines);
    const text = ({ name, role }) => role ? `${name}, ${role}` : name;
    const options = rung.lanes.map((lane, k) => make("option", { value: k }, text(lane)));
    if (rung.source.wrong) lines[rung.source.wrong - 1]?.classList.add("wrong");
    const choice = make("select", { "aria-label": "the warp whose lines are shown",
      change: () => player.choose(rung, +choice.value) }, ...options);
    const node = card("source", "Source", code);
    node.firstChild.append(make("code", { class: "small muted" }, path), ...(options.length ? [choice] : []));
    let shown = [0, 0], tall = 0;
    const layout = () => { tall = code.clientHeight; };
    const mark = ([from, to], on) => {
      for (const line of from ? lines.slice(from - 1, to) : []) line.classList.toggle("now", on);
    };
    const words = (time) => {
      if (choice.value !== `${rung.chosen}`) choice.value = rung.chosen;
      const bar = rung.barAt(rung.chosen, rung.moment(time));
      const { wrong } = rung.source, stopped = wrong && time >= rung.end;
      const next = stopped ? [wrong, wrong] : bar < 0 ? [0, 0] : [rung.bars.from[bar], rung.bars.to[bar]];
      if (next[0] === shown[0] && next[1] === shown[1]) return;
      mark(shown, false);
      mark(shown = next, true);
      const top = (next[0] - 1) * LINE, bottom = next[1] * LINE;
      const hidden = top < code.scrollTop || bottom > code.scrollTop + tall;
      if (next[0] && hidden) code.scrollTop = Math.max(0, top - tall / 3);
    };
    return { node, layout, words };
  };

  // --- The player ----------------------------------------------------------------------------------------------------

  let time = 0, playing = false, speed = SPEEDS.indexOf(1), zoomed = 0;
  let goal = null, asked = false, last = 0, written = 0, spoken = 0, frames = 0, laidOut = 0;
  const rungs = movie.rungs.map(prepare);
  // A step goes to the next tile of a watched multiprocessor: it is what the rest of the page speaks of.
  const begins = (() => {
    const mine = rungs.flatMap((rung) => rung.tiles.filter(rung.watchedTile));
    const tiles = mine.length ? mine : rungs.flatMap((rung) => rung.tiles);
    const found = [...new Set([0, ...tiles.map((tile) => tile[6]), movie.end])].sort((a, b) => a - b);
    return found.length > 2 ? found : Array.from({ length: 101 }, (_, k) => Math.round(movie.end * k / 100));
  })();
  const redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(frame);
  };
  const seek = (clocks) => { goal = null; time = clamp(clocks, 0, movie.end); redraw(); };
  const pause = () => { playing = false; redraw(); };
  const play = () => {
    if (time >= movie.end) seek(0);
    goal = null;
    playing = true;
    last = performance.now();
    redraw();
  };
  const toggle = () => playing ? pause() : play();
  const stepFrom = (from, by) => {
    const next = by > 0 ? upper(begins, from) : upper(begins, from - 1e-6) - 1;
    return begins[clamp(next, 0, begins.length - 1)];
  };
  const step = (by) => { pause(); seek(stepFrom(goal ?? time, by)); };
  const glide = (by) => {
    if (still.matches) return step(by);
    pause();
    goal = stepFrom(goal ?? time, by);
    last = performance.now();
  };
  const faster = (by) => { speed = clamp(speed + by, 0, SPEEDS.length - 1); redraw(); };
  const zoom = (by) => { zoomed = clamp(zoomed + by, 0, ZOOMS); redraw(); };
  const choose = (rung, lane) => { rung.chosen = lane; redraw(); };
  window.player = {
    movie, seek, play, pause, step, zoom, choose, redraw,
    get time() { return time; }, get playing() { return playing; }, get frames() { return frames; },
    get zoomed() { return zoomed; }, get speed() { return SPEEDS[speed]; },
    values: (index) => Object.fromEntries(rungs[index].counters.map(({ label }, k) =>
      [label, Math.round(rungs[index].values[k](time))])),
    tiles: (index) => {
      const rung = rungs[index], now = rung.moment(time);
      return { working: rung.working.at(now).length, done: upper(rung.tileEnds, now) };
    },
    row: (index) => rungs[index].rowAt(time),
  };
  const player = window.player;

  // The bar.
  const playButton = press("play (space)", toggle, icon("play")), clock = make("output", { class: "clock" });
  const pace = make("span", { class: "pace" });
  const themeButton = press("theme: light, dark, or as the system has it (t)", () => {}, "");
  themeButton.id = "theme";
  const slider = make("input", { type: "range", min: 0, max: movie.end, step: 1, value: 0,
    "aria-label": "time in clocks", input: () => { pause(); seek(+slider.value); } });
  const keys = [["space", "play, pause"], ["← →", "to the tile before, to the next tile of the watched multiprocessor"],
    ["Home End", "to the start, to the end"], ["+ −", "less time, more time in the time view"],
    ["[ ]", "slower, faster"], ["t", "theme"], ["?", "these keys"]];
  const help = make("dialog", { "aria-label": "keys" }, make("h2", {}, "Keys"),
    make("dl", {}, ...keys.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
    make("h2", {}, "Words"), make("dl", {}, ...WORDS.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
    make("p", { class: "small" }, "A click in the time view goes to that time; on a lane it also chooses the " +
      "warp whose lines the source shows."),
    make("form", { method: "dialog" }, make("button", {}, "close")));
  const showHelp = () => { if (!help.open) help.showModal(); };
  const plain = new URL(location.href);
  plain.searchParams.delete("embed");
  const bar = make("nav", { class: "bar", "aria-label": "player" }, playButton,
    press("step back (←)", () => glide(-1), icon("back")), press("step forward (→)", () => glide(1), icon("forth")),
    slider, clock, make("span", { class: "group" },
      make("span", { class: "small muted" }, "speed"), press("slower ([)", () => faster(-1), "−"), pace, press("faster (])", () => faster(1), "+")), themeButton,
    !compact ? press("keys (?)", showHelp, "?")
      : plain.protocol === "about:" ? "" : make("a", { href: plain.href, target: "_blank" }, "open"));

  const views = rungs.map((rung) => {
    const matrix = matrixView(rung), timeline = timeView(rung, player);
    if (compact) return [matrix, timeline];
    const row = rung.row?.steps.length ? [rowView(rung)] : [];
    const counters = rung.counters.length ? [countersView(rung)] : [];
    return [headView(rung), matrix, memoryView(rung), ...row, timeline, ...counters, sourceView(rung, player)];
  });
  const big = press("play", play, icon("play"));
  big.className = "big";
  views[0].find((view) => view.stage).stage.append(big);
  document.body.classList.toggle("compact", compact);
  root.classList.toggle("two", rungs.length > 1);
  root.replaceChildren(make("div", { class: "rungs" }, ...views.map((list, k) => {
    const { digits, title, row, shared } = rungs[k];
    const node = make("article", { class: "rung", "aria-label": `${digits} ${title}` });
    node.append(...list.map((view) => view.node));
    node.classList.toggle("norow", !row?.steps.length);
    node.classList.toggle("many", (shared ?? []).length > 5);
    return node;
  })));
  if (!compact) root.append(make("p", { class: "small muted model" }, movie.time), help);
  document.body.prepend(bar);

  const all = views.flat();
  const relayout = () => {  // and draws at once: a canvas of a new size is empty
    readColours();
    laidOut = root.clientWidth;
    for (const view of all) view.layout?.(view.canvas ? view.canvas.clientWidth : 0);
    for (const view of all) view.draw?.(time);
    redraw();
  };
  // What the page says in words changes less often than its pictures: that is calmer and saves layout.
  const speak = (now) => {
    for (const view of all) view.words?.(time);
    write(clock, `${number(Math.round(time))} / ${number(movie.end)} clocks`);
    write(pace, `${SPEEDS[speed] < 1 ? "1/" + 1 / SPEEDS[speed] : SPEEDS[speed]}×`);
    if (playButton.shown !== playing) {
      playButton.innerHTML = icon((playButton.shown = playing) ? "pause" : "play");
      playButton.setAttribute("aria-label", playButton.title = playing ? "pause (space)" : "play (space)");
    }
    if (playing && now - spoken < 1000) return;
    spoken = now;
    slider.setAttribute("aria-valuetext", `${number(Math.round(time))} of ${number(movie.end)} clocks`);
    for (const view of all) if (view.say) view.canvas.setAttribute("aria-label", view.say(time));
  };
  const frame = (now) => {
    asked = false;
    const passed = clamp(now - last, 0, 100);
    last = now;
    if (playing) {
      time = Math.min(movie.end, time + passed / 1000 * SPEEDS[speed] * movie.end / SECONDS);
      if (time >= movie.end) playing = false;
    } else if (goal !== null) {
      time += (goal - time) * (1 - Math.exp(-passed / 70));
      if (Math.abs(goal - time) < movie.end / 2e4) { time = goal; goal = null; }
    }
    const moving = playing || goal !== null;
    if (!moving || now - written > 80) { written = now; speak(now); }
    for (const view of all) if (view.draw && view.seen !== false) view.draw(time);
    slider.value = time;
    if (big.hidden !== (time > 0 || playing)) big.hidden = time > 0 || playing;
    frames++;
    if (moving) redraw();
  };

  const nextTheme = withTheme(themeButton, relayout);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.target.tagName === "SELECT") return;
    if (/^(Arrow|Home|End)/.test(event.key) && event.target.closest?.(".code")) return;  // they scroll the source
    const acts = {
      ArrowLeft: () => glide(-1), ArrowRight: () => glide(1), Home: () => { pause(); seek(0); },
      End: () => { pause(); seek(movie.end); }, "+": () => zoom(1), "=": () => zoom(1), "-": () => zoom(-1),
      "[": () => faster(-1), "]": () => faster(1), t: nextTheme, "?": () => { if (!compact) showHelp(); },
    };
    if (event.key === " " && !/^(BUTTON|A)$/.test(event.target.tagName)) acts[" "] = toggle;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  // A view that is out of sight is not drawn.
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) all.find((view) => view.node === entry.target).seen = entry.isIntersecting;
    redraw();
  });
  for (const view of all) sight.observe(view.node);
  new ResizeObserver(() => { if (root.clientWidth !== laidOut) relayout(); }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", relayout);
})();
