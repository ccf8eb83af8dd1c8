// Plays recorded episodes: draws the game, what the agent believed, and the episode's time line, at any frame.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { scene, agents, actions, episodes, decimals } = data;
  const $ = (id) => document.getElementById(id);
  const duo = agents.length > 1;
  const SPEEDS = [...$("speed").options].map((o) => Number(o.value));
  const state = { episode: -1, frame: 0, length: 1, playing: false, owed: 0, before: 0 };
  const MINUS = "\u2212", DASH = "\u2013";
  let colours = {};
  let loaded = [];  // of the episode that is shown: the arrays of each agent

  // Numbers.

  const fixed = (value, digits) => {
    if (value === undefined || Number.isNaN(value)) return DASH;
    const text = Math.abs(value).toFixed(digits);
    return (value < 0 && Number(text) !== 0 ? MINUS : "") + text;
  };
  const show = (kind, value) => fixed(value, decimals[kind]);
  const brief = (value) => {
    if (Math.abs(value) < 1e-6) return "0";  // what rounding leaves of nothing
    const text = Number(Math.abs(value).toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
    return (value < 0 ? MINUS : "") + text;
  };
  const whole = (value) => value.toLocaleString("en");

  // Bytes of an episode.

  const KINDS = { float32: Float32Array, uint16: Uint16Array, uint8: Uint8Array };
  const bytesOf = (id) => {
    const text = atob($(id).textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
  };
  const open = async (told) => {
    const stream = new Blob([bytesOf(told.block)]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const found = { told, sheets: new Map() };
    for (const { name, dtype, shape, offset } of told.layout) {
      const size = shape.reduce((a, b) => a * b, 1);
      found[name] = new KINDS[dtype](buffer, offset, size);
      if (name === "quantiles") found.quantiles = quantilesOf(found.quantiles, shape, told.quantiles);
      if (name === "cells") found.cellBytes = shape[1];
      if (name === "numbers") found.count = shape[1];
    }
    found.returns = new Float64Array(told.length + 1);
    for (let i = 0; i < told.length; i++) found.returns[i + 1] = found.returns[i] + found.reward[i];
    return found;
  };
  // Steps from each quantile to the next, low bytes first: see page.py.
  const quantilesOf = (halves, [, frames, count, levels], { low, span }) => {
    const size = frames * count * levels;
    const values = new Float32Array(size);
    for (let i = 0, at = 0; i < size; i++) {
      if (i % levels === 0) at = 0;
      at += halves[i] + 256 * halves[size + i];
      values[i] = low + (span * at) / 65535;
    }
    return { values, levels };
  };

  // Canvases: sharp on every screen.

  const fit = (canvas, width, height) => {
    const scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    return pen;
  };
  const sizes = new Map();  // asking the browser while text changes would lay the page out anew each time
  const sizeOf = (canvas) => {
    if (!sizes.has(canvas)) sizes.set(canvas, [canvas.clientWidth, canvas.clientHeight]);
    return sizes.get(canvas);
  };
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ground", "raised", "ink", "quiet", "rule", "mean", "doubt", "noise", "promise", "reward", "a0", "a1"])
      colours[name] = style.getPropertyValue(`--${name}`).trim();
  };
  const polygon = (pen, points, left, top, size) => {
    pen.beginPath();
    for (const [x, y] of points) pen.lineTo(left + x * size, top + y * size);
    pen.closePath();
  };

  // The game.

  const screens = agents.map((_, i) => $(`screen${i}`));
  const bit = (found, frame, index) => (found.cells[frame * found.cellBytes + (index >> 3)] >> (index & 7)) & 1;
  const eachCell = (found, frame, visit) => {
    const layers = scene.layers.length;
    for (const layer of scene.order)
      for (let cell = 0; cell < scene.height * scene.width; cell++)
        if (bit(found, frame, cell * layers + layer)) visit(layer, Math.floor(cell / scene.width), cell % scene.width);
  };
  const painters = {
    grid(pen, found, frame, width, height) {
      const size = width / scene.width;
      pen.fillStyle = "#10141b";
      pen.fillRect(0, 0, width, height);
      scene.ground.forEach((row, y) => row.forEach((kind, x) => {
        pen.fillStyle = scene.grounds[kind].colour;
        pen.fillRect(x * size + 0.5, y * size + 0.5, size - 1, size - 1);
      }));
      if (!scene.ground.length) {
        pen.strokeStyle = "#1b222c";
        pen.lineWidth = 1;
        pen.beginPath();
        for (let x = 1; x < scene.width; x++) { pen.moveTo(x * size, 0); pen.lineTo(x * size, height); }
        for (let y = 1; y < scene.height; y++) { pen.moveTo(0, y * size); pen.lineTo(width, y * size); }
        pen.stroke();
      }
      eachCell(found, frame, (layer, y, x) => {
        const { colour, polygons } = scene.layers[layer];
        pen.fillStyle = colour;
        for (const points of polygons) { polygon(pen, points, x * size, y * size, size); pen.fill(); }
      });
    },
    shapes(pen, found, frame, width, height) {
      pen.fillStyle = "#10141b";
      pen.fillRect(0, 0, width, height);
      pen.lineCap = "round";
      pen.lineJoin = "round";
      for (const part of scene.parts) {
        let points = part.points;
        if (part.at >= 0) {
          points = [];
          const from = frame * found.count + part.at;
          for (let i = 0; i < part.count; i++) points.push([found.numbers[from + 2 * i], found.numbers[from + 2 * i + 1]]);
        }
        if (part.kind === "text") {
          pen.fillStyle = part.colour;
          pen.font = `${0.05 * height}px system-ui, sans-serif`;
          pen.textAlign = "right";
          pen.textBaseline = "middle";
          pen.fillText(part.text, points[0][0] * height, points[0][1] * height);
        } else if (part.kind === "line") {
          pen.strokeStyle = part.colour;
          pen.lineWidth = part.width * height;
          pen.beginPath();
          for (const [x, y] of points) pen.lineTo(x * height, y * height);
          pen.stroke();
        } else {
          pen.fillStyle = part.colour;
          polygon(pen, points, 0, 0, height);
          pen.fill();
        }
      }
    },
    pictures(pen, found, frame, width, height, again) {
      const { across, down, every, sheets, width: w, height: h } = found.told.pictures;
      const perSheet = across * down;
      const place = Math.floor(frame / every);
      const number = Math.floor(place / perSheet);
      const at = place % perSheet;
      const sheet = sheetOf(found, number, again);
      if (number + 1 < sheets.length) sheetOf(found, number + 1, () => {});  // before it is needed
      if (!sheet.ready) return;
      pen.imageSmoothingEnabled = true;
      pen.drawImage(sheet.image, (at % across) * w, Math.floor(at / across) * h, w, h, 0, 0, width, height);
    },
  };
  const sheetOf = (found, number, then) => {
    const { sheets, mime } = found.told.pictures;
    let sheet = found.sheets.get(number);
    if (!sheet) {
      const image = new Image();
      sheet = { image, ready: false, then };
      found.sheets.set(number, sheet);
      if (found.sheets.size > 12) found.sheets.delete(found.sheets.keys().next().value);
      image.src = `data:${mime};base64,${$(sheets[number]).textContent}`;
      image.decode().then(() => { sheet.ready = true; sheet.then(); });
    } else if (!sheet.ready) sheet.then = then;
    return sheet;
  };
  const within = (i) => Math.min(state.frame, loaded[i].told.length - 1);
  const drawGame = (i) => {
    const canvas = screens[i];
    const [width] = sizeOf(canvas);
    if (!width) return;
    const height = width / scene.ratio;
    if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
    painters[scene.kind](fit(canvas, width, height), loaded[i], within(i), width, height, () => drawGame(i));
    const told = loaded[i].told;
    const over = canvas.nextElementSibling;
    const at = within(i) === told.length - 1;
    over.hidden = !at;
    if (at) {
      const how = { terminated: "The episode ends here", truncated: "Cut off by the environment here", cut: "Watched no further" }[told.end];
      over.textContent = `${how}, with a return of ${brief(told.total)}.`;
    }
  };
  const things = (i) => {
    if (scene.kind !== "grid") return "";
    const found = scene.layers.map(() => []);
    eachCell(loaded[i], within(i), (layer, y, x) => found[layer].push([y, x]));
    return found.map((cells, layer) => {
      const { name } = scene.layers[layer];
      if (!cells.length) return "";
      if (cells.length > 3) return `${cells.length} cells of ${name}`;
      return cells.map(([y, x]) => `${name} at row ${y + 1}, column ${x + 1}`).join("; ");
    }).filter(Boolean).join("; ");
  };

  // Beliefs.

  const panels = agents.map((agent, i) => {
    const section = $(`beliefs${i}`);
    const rows = [...section.querySelectorAll(".rows .row")].map((row) => ({
      row,
      canvas: row.querySelector("canvas"),
      mean: row.querySelector(".mean"),
      epistemic: row.querySelector(".epistemic"),
      aleatoric: row.querySelector(".aleatoric"),
    }));
    const facts = {};
    for (const dd of section.querySelectorAll("dd")) facts[dd.className] = dd;
    return { section, rows, facts, axis: section.querySelector("canvas.axis") };
  });
  const ticks = (low, high, most) => {
    const rough = (high - low) / most;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((n) => n * unit >= rough) * unit;
    const found = [];
    for (let t = Math.ceil(low / step - 1e-9); t * step <= high + 1e-9 * step; t++) found.push(t * step);
    return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  };
  const EDGE = 6;
  const axisOf = (i, width) => {  // as long in all frames, so that widths can be compared
    const { span } = loaded[i].told;
    const low = loaded[i].middle[within(i)] - span / 2, high = low + span;
    const place = (v) => EDGE + (v - low) / span * (width - 2 * EDGE);
    return { low, high, place, x: (v) => place(Math.min(Math.max(v, low), high)) };
  };
  const KERNEL = Array.from({ length: 13 }, (_, k) => Math.exp(-0.5 * (k / 4) ** 2));
  const drawAxis = (i) => {
    const canvas = panels[i].axis;
    const [width] = sizeOf(canvas);
    if (!width) return;
    const pen = fit(canvas, width, 22);
    const { low, high, x } = axisOf(i, width);
    pen.clearRect(0, 0, width, 22);
    pen.strokeStyle = colours.quiet;
    pen.fillStyle = colours.quiet;
    pen.lineWidth = 1;
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    const { found, digits } = ticks(low, high, Math.max(2, width / 90));
    pen.beginPath();
    pen.moveTo(EDGE, 0.5);
    pen.lineTo(width - EDGE, 0.5);
    for (const t of found) { pen.moveTo(x(t), 0); pen.lineTo(x(t), 5); }
    pen.stroke();
    for (const t of found) {
      const text = fixed(t, digits);
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(x(t), half), width - half), 18);
    }
  };
  const drawRow = (i, a, frame) => {
    const found = loaded[i];
    const { canvas } = panels[i].rows[a];
    const [width, high] = sizeOf(canvas), base = high - 21;
    if (!width) return;
    const pen = fit(canvas, width, high);
    const { x, place } = axisOf(i, width);
    pen.clearRect(0, 0, width, high);
    pen.strokeStyle = colours.rule;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(EDGE, base + 0.5);
    pen.lineTo(width - EDGE, base + 0.5);
    pen.stroke();
    const at = frame * actions.length + a;
    const mean = x(found.mean[at]);
    if (found.quantiles) {
      const { values, levels } = found.quantiles;
      const density = new Float32Array(Math.ceil(width) + 1);
      for (let q = 0; q < levels; q++) {
        const middle = Math.round(place(values[at * levels + q]));
        for (let k = -12; k <= 12; k++) if (density[middle + k] !== undefined) density[middle + k] += KERNEL[Math.abs(k)];
      }
      const most = Math.max(...density) || 1;
      pen.beginPath();
      pen.moveTo(0, base);
      for (let p = 0; p < density.length; p++) pen.lineTo(p, base - (density[p] / most) * (base - 4));
      pen.lineTo(width, base);
      pen.closePath();
      pen.fillStyle = colours.noise;
      pen.globalAlpha = 0.32;
      pen.fill();
      pen.globalAlpha = 1;
      pen.strokeStyle = colours.noise;
      pen.lineWidth = 1.3;
      pen.stroke();
      pen.globalAlpha = 0.75;
      pen.beginPath();
      for (let q = 0; q < levels; q++) {
        const p = place(values[at * levels + q]);
        pen.moveTo(p, base + 2);
        pen.lineTo(p, base + 7);
      }
      pen.lineWidth = 1;
      pen.stroke();
      pen.globalAlpha = 1;
    }
    if (found.epistemic) {
      const doubt = found.epistemic[at];
      const [left, right] = [x(found.mean[at] - doubt), x(found.mean[at] + doubt)];
      pen.fillStyle = colours.doubt;
      pen.fillRect(left, base + 9, Math.max(right - left, 2), 4);
    }
    if (found.quantiles) {  // what lies beyond the axis
      const { values, levels } = found.quantiles, from = at * levels;
      pen.fillStyle = colours.noise;
      if (place(values[from]) < 0) { polygon(pen, [[0, 0.5], [1, 0], [1, 1]], 0, base - 12, 8); pen.fill(); }
      if (place(values[from + levels - 1]) > width) { polygon(pen, [[1, 0.5], [0, 0], [0, 1]], width - 8, base - 12, 8); pen.fill(); }
    }
    pen.fillStyle = colours.mean;
    pen.fillRect(mean - 1.25, found.quantiles ? 3 : base - 12, 2.5, found.quantiles ? base + 9 : 24);
    if (!found.quantiles) { pen.beginPath(); pen.arc(mean, base - 12, 5, 0, 7); pen.fill(); }
    if (found.lower && found.greedy[frame] === a) {
      const [left, right] = [x(found.lower[frame]), x(found.upper[frame])];
      pen.strokeStyle = colours.promise;
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(left, base + 12);
      pen.lineTo(left, base + 18);
      pen.lineTo(right, base + 18);
      pen.lineTo(right, base + 12);
      pen.stroke();
    }
  };
  const drawBeliefs = (i) => {
    const found = loaded[i], frame = within(i), { rows, facts } = panels[i];
    rows.forEach(({ row, mean, epistemic, aleatoric }, a) => {
      const at = frame * actions.length + a;
      row.classList.toggle("did", found.action[frame] === a);
      row.classList.toggle("is-greedy", found.greedy[frame] === a);
      row.classList.toggle("is-sampled", found.sampled[frame] === a);
      mean.textContent = show("mean", found.mean[at]);
      epistemic.textContent = found.epistemic ? show("epistemic", found.epistemic[at]) : DASH;
      aleatoric.textContent = found.aleatoric ? show("aleatoric", found.aleatoric[at]) : DASH;
      drawRow(i, a, frame);
    });
    drawAxis(i);
    facts.reward.textContent = show("reward", found.reward[frame]);
    facts.total.textContent = show("reward", found.returns[frame + 1]);
    facts.outcome.textContent = show("mean", found.outcome[frame]);
    facts.surprise.textContent = fixed(found.surprise[frame], 2);
    if (facts.interval) facts.interval.textContent = `${show("mean", found.lower[frame])} to ${show("mean", found.upper[frame])}`;
    if (facts.novelty) facts.novelty.textContent = fixed(found.novelty[frame], 3);
  };
  const explain = (i) => {
    const found = loaded[i], { section } = panels[i];
    const keys = section.querySelector(".keys");
    const entries = [["mean", "mean"]];
    if (found.quantiles) entries.unshift(["noise", `distribution of the return, ${found.quantiles.levels} quantiles`]);
    if (found.epistemic) entries.push(["doubt", "mean \u00b1 epistemic"]);
    if (found.lower) entries.push(["promise", `guaranteed interval of the greedy action`]);
    keys.replaceChildren(...entries.map(([kind, text]) => {
      const span = document.createElement("span"), mark = document.createElement("i");
      mark.className = `key ${kind}`;
      span.append(mark, text);
      return span;
    }));
    const lacks = [];
    if (!found.quantiles) lacks.push("the distribution of returns");
    if (!found.epistemic) lacks.push("its own doubt (epistemic)");
    if (!found.aleatoric) lacks.push("the world\u2019s noise (aleatoric)");
    const missing = lacks.length ? [`This agent does not estimate ${lacks.join(" or ").replace(/ or (?=.* or )/g, ", ")}.`] : [];
    if (!found.lower) missing.push(`It is not calibrated, so nothing is guaranteed: \u201cceqr calibrate ${agents[i].run}\u201d would change that.`);
    else if (found.told.inside !== null)
      missing.push(`In this episode, the return that followed was inside the interval in ${(100 * found.told.inside).toFixed(0)} % of the frames.`);
    section.querySelector(".missing").textContent = missing.join(" ");
  };

  // The time line: drawn once an episode and size; what moves is drawn over it.

  const line = $("line");
  const back = document.createElement("canvas");
  const LEFT = 46, RIGHT = 8, STRIP = 56, GAP = 22, FOOT = 20, TOP = 18;
  const greedyOf = (found, kind) => {
    const values = new Float32Array(found.told.length);
    for (let t = 0; t < values.length; t++) values[t] = found[kind][t * actions.length + found.greedy[t]];
    return values;
  };
  let strips = [];
  const prepare = () => {
    const each = (make) => loaded.map(make);
    strips = [
      { name: "value of the greedy action", colour: "mean", mark: "surprise", lines: each((f) => greedyOf(f, "mean")), band: true },
      { name: "epistemic", colour: "doubt", mark: "doubt", zero: true, lines: each((f) => f.epistemic && greedyOf(f, "epistemic")) },
      { name: "aleatoric", colour: "noise", zero: true, lines: each((f) => f.aleatoric && greedyOf(f, "aleatoric")) },
      { name: "reward", colour: "reward", zero: true, stems: true, lines: each((f) => f.reward) },
    ];
    for (const strip of strips) {
      let low = strip.zero ? 0 : Infinity, high = strip.zero ? 0 : -Infinity;
      const widen = (values) => { if (values) for (const v of values) { if (v < low) low = v; if (v > high) high = v; } };
      strip.lines.forEach(widen);
      if (strip.band) for (const f of loaded) { widen(f.lower); widen(f.upper); widen(f.outcome); }
      if (!(high > low)) high = low + 1;
      const margin = 0.06 * (high - low);
      Object.assign(strip, { low: strip.zero && low === 0 ? 0 : low - margin, high: high + margin });
    }
  };
  const timeX = (width) => (t) => LEFT + (state.length > 1 ? t / (state.length - 1) : 0.5) * (width - LEFT - RIGHT);
  const lineHeight = () => TOP + strips.length * (STRIP + GAP) - GAP + FOOT;
  const drawBack = () => {
    const width = line.clientWidth, high = lineHeight();
    if (!width) return;
    line.style.height = `${high}px`;
    const pen = fit(back, width, high);
    const x = timeX(width);
    pen.clearRect(0, 0, width, high);
    pen.font = "12px system-ui, sans-serif";
    pen.lineJoin = "round";
    strips.forEach((strip, s) => {
      const top = TOP + s * (STRIP + GAP), bottom = top + STRIP;
      const y = (v) => bottom - (v - strip.low) / (strip.high - strip.low) * STRIP;
      strip.y = y;
      pen.fillStyle = colours.raised;
      pen.fillRect(LEFT, top, width - LEFT - RIGHT, STRIP);
      const { found, digits } = ticks(strip.low, strip.high, 2.2);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      for (const t of found) {
        pen.strokeStyle = colours.rule;
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(LEFT, Math.round(y(t)) + 0.5);
        pen.lineTo(width - RIGHT, Math.round(y(t)) + 0.5);
        pen.stroke();
        pen.fillStyle = colours.quiet;
        pen.fillText(fixed(t, digits), LEFT - 5, Math.min(Math.max(y(t), top + 5), bottom - 4));
      }
      strip.lines.forEach((values, i) => {
        const colour = duo ? colours[`a${i}`] : colours[strip.colour];
        const f = loaded[i];
        if (strip.band && f.lower && !duo) {
          pen.beginPath();
          for (let t = 0; t < f.told.length; t++) pen.lineTo(x(t), y(f.upper[t]));
          for (let t = f.told.length - 1; t >= 0; t--) pen.lineTo(x(t), y(f.lower[t]));
          pen.closePath();
          pen.fillStyle = colours.promise;
          pen.globalAlpha = 0.2;
          pen.fill();
          pen.globalAlpha = 1;
        }
        if (strip.band && !duo) {
          pen.beginPath();
          let on = false;
          for (let t = 0; t < f.told.length; t++) {
            if (Number.isNaN(f.outcome[t])) on = false;
            else { if (on) pen.lineTo(x(t), y(f.outcome[t])); else pen.moveTo(x(t), y(f.outcome[t])); on = true; }
          }
          pen.strokeStyle = colours.ink;
          pen.setLineDash([2, 3]);
          pen.lineWidth = 1.2;
          pen.stroke();
          pen.setLineDash([]);
        }
        if (!values) return;
        pen.strokeStyle = colour;
        pen.beginPath();
        if (strip.stems) {
          pen.lineWidth = Math.min(3, Math.max(1, (width - LEFT) / values.length / 2));
          const shift = duo ? (i - 0.5) * 2 : 0;
          for (let t = 0; t < values.length; t++)
            if (values[t]) { pen.moveTo(x(t) + shift, y(0)); pen.lineTo(x(t) + shift, y(values[t])); }
        } else {
          pen.lineWidth = 1.7;
          if (i) pen.setLineDash([6, 3]);
          for (let t = 0; t < values.length; t++) pen.lineTo(x(t), y(values[t]));
        }
        pen.stroke();
        pen.setLineDash([]);
      });
      const none = strip.lines.every((values) => !values);
      let name = none ? `${strip.name}: this agent does not estimate it` : strip.name;
      if (strip.band && !duo) name += loaded[0].lower ? " (shaded: guaranteed interval; dotted: what really followed)" : " (dotted: what really followed)";
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      while (pen.measureText(name).width > width - LEFT - RIGHT && name.includes(" (")) name = name.slice(0, name.lastIndexOf(" ("));
      pen.fillStyle = colours.ink;
      pen.fillText(name, LEFT, top - 6);
      if (!duo) for (const moment of loaded[0].told.moments) {
        if (moment.kind !== strip.mark) continue;
        const at = x(moment.frame), up = top + 4;
        pen.strokeStyle = colours.raised;
        pen.lineWidth = 2;
        pen.fillStyle = colours[moment.kind === "doubt" ? "doubt" : "mean"];
        polygon(pen, moment.kind === "doubt" ? [[-0.5, -0.6], [0.5, -0.6], [0, 0.5]] : [[0, -0.65], [0.55, 0], [0, 0.65], [-0.55, 0]], at, up, 11);
        pen.stroke();
        pen.fill();
      }
    });
    const { found } = ticks(1, state.length, Math.max(2, width / 110));
    const foot = lineHeight() - FOOT;
    pen.fillStyle = colours.quiet;
    pen.textBaseline = "alphabetic";
    for (const t of found) {
      if (t < 1 || t !== Math.round(t)) continue;
      const text = whole(t), half = pen.measureText(text).width / 2;
      pen.textAlign = "center";
      pen.fillText(text, Math.min(x(t - 1), width - RIGHT - half), foot + 15);
    }
    pen.textAlign = "left";
    pen.fillText("frame", 2, foot + 15);
  };
  const drawLine = () => {
    const [width] = sizeOf(line), high = lineHeight();
    if (!width || !back.width) return;
    const pen = fit(line, width, high);
    pen.clearRect(0, 0, width, high);
    pen.drawImage(back, 0, 0, width, high);
    const at = timeX(width)(state.frame);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(at, TOP - 4);
    pen.lineTo(at, high - FOOT + 3);
    pen.stroke();
    for (const strip of strips) strip.lines.forEach((values, i) => {
      if (!values || strip.stems) return;
      pen.fillStyle = duo ? colours[`a${i}`] : colours[strip.colour];
      pen.beginPath();
      pen.arc(timeX(width)(within(i)), strip.y(values[within(i)]), 4, 0, 7);
      pen.fill();
      pen.strokeStyle = colours.ground;
      pen.stroke();
    });
  };

  // Words.

  const sentence = (i) => {
    const found = loaded[i], frame = within(i), best = found.greedy[frame], at = frame * actions.length + best;
    const parts = [`value ${show("mean", found.mean[at])}`];
    if (found.epistemic) parts.push(`epistemic ${show("epistemic", found.epistemic[at])}`);
    if (found.aleatoric) parts.push(`aleatoric ${show("aleatoric", found.aleatoric[at])}`);
    if (found.lower) parts.push(`guaranteed between ${show("mean", found.lower[frame])} and ${show("mean", found.upper[frame])}`);
    if (found.novelty) parts.push(`novelty p = ${fixed(found.novelty[frame], 3)}`);
    const sampled = found.sampled[frame] === best ? "" : ` While learning it would do \u201c${actions[found.sampled[frame]]}\u201d.`;
    return `${duo ? `${agents[i].label}: the` : "The"} greedy action is \u201c${actions[best]}\u201d: ${parts.join(", ")}.${sampled} ` +
      `It does \u201c${actions[found.action[frame]]}\u201d: reward ${show("reward", found.reward[frame])}, return so far ${show("reward", found.returns[frame + 1])}.`;
  };
  const speak = () => {
    const words = `Frame ${whole(state.frame + 1)} of ${whole(state.length)}. ${loaded.map((_, i) => sentence(i)).join(" ")}`;
    $("reading").textContent = words;
    if (state.playing) return;
    screens.forEach((canvas, i) => canvas.setAttribute("aria-label", `The game at frame ${within(i) + 1}. ${things(i)}`));
  };

  // Playing.

  const draw = () => {
    if (!loaded.length) return;
    loaded.forEach((_, i) => { drawGame(i); drawBeliefs(i); });
    drawLine();
    const seek = $("seek");
    seek.value = state.frame;
    seek.setAttribute("aria-valuetext", `frame ${state.frame + 1} of ${state.length}`);
    $("clock").textContent = `${whole(state.frame + 1)} / ${whole(state.length)}`;
    for (const button of document.querySelectorAll(".moments button"))
      button.setAttribute("aria-current", String(Number(button.dataset.frame) === state.frame));
    $("back").disabled = $("first").disabled = state.frame === 0;
    $("on").disabled = $("last").disabled = state.frame === state.length - 1;
    speak();
  };
  let asked = false;
  const soon = () => {  // at most once a frame of the screen
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
  const go = (frame) => {
    state.frame = Math.max(0, Math.min(state.length - 1, Math.round(frame)));
    if (!state.playing) history.replaceState(null, "", `#${state.episode + 1}.${state.frame + 1}`);
    soon();
  };
  const tick = (now) => {
    if (!state.playing) return;
    state.owed += Math.min(now - state.before, 250) / 1000 * Number($("speed").value);
    state.before = now;
    const steps = Math.floor(state.owed);
    if (steps) {
      state.owed -= steps;
      state.frame = Math.min(state.length - 1, state.frame + steps);
      draw();
      if (state.frame === state.length - 1) { play(false); return; }
    }
    requestAnimationFrame(tick);
  };
  const play = (wanted) => {
    if (wanted === state.playing) return;
    state.playing = wanted;
    document.body.classList.toggle("playing", wanted);
    $("toggle").setAttribute("aria-label", wanted ? "Pause" : "Play");
    $("reading").setAttribute("aria-live", wanted ? "off" : "polite");  // not a flood of words
    if (wanted) {
      if (state.frame === state.length - 1) state.frame = 0;
      Object.assign(state, { owed: 0, before: performance.now() });
      requestAnimationFrame(tick);
    } else go(state.frame);
  };
  const faster = (by) => {
    const at = SPEEDS.indexOf(Number($("speed").value));
    $("speed").value = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, at + by))];
  };
  const marked = () => [...new Set(loaded.flatMap((f) => f.told.moments.map((m) => m.frame)))].sort((a, b) => a - b);
  const jump = (by) => {
    const frames = marked();
    const to = by > 0 ? frames.find((f) => f > state.frame) : frames.reverse().find((f) => f < state.frame);
    if (to !== undefined) { play(false); go(to); }
  };
  const listMoments = () => {
    for (const [id, kind, unit] of [["doubts", "doubt", "epistemic"], ["surprises", "surprise", ""]]) {
      const place = $(id).querySelector("p");
      const found = loaded.flatMap((f, i) => f.told.moments.filter((m) => m.kind === kind).map((m) => ({ ...m, i })));
      found.sort((a, b) => b.value - a.value);
      place.replaceChildren(...found.map(({ frame, value, i }) => {
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.frame = frame;
        const text = unit ? show(unit, value) : fixed(value, 2);
        button.textContent = `frame ${whole(frame + 1)}: ${text}${duo ? ` (${agents[i].label})` : ""}`;
        button.addEventListener("click", () => { play(false); go(frame); });
        return button;
      }));
      if (!found.length) place.textContent = kind === "doubt" && loaded.every((f) => !f.epistemic) ? "this agent does not estimate it" : "nothing stands out";
    }
    const any = marked().length === 0;
    $("previous-moment").disabled = $("next-moment").disabled = any;
  };
  const choose = async (number, frame = 0) => {
    if (number < 0 || number >= episodes.length) return;
    play(false);
    const found = await Promise.all(episodes[number].agents.map(open));
    loaded = found;
    state.episode = number;
    state.length = Math.max(...found.map((f) => f.told.length));
    $("seek").max = state.length - 1;
    for (const button of document.querySelectorAll("[data-episode]"))
      button.setAttribute("aria-pressed", String(Number(button.dataset.episode) === number));
    $("episode-name").textContent = `${number + 1} of ${episodes.length}: ${found.map((f, i) => `${duo ? `${agents[i].label} ` : ""}${whole(f.told.length)} frames, return ${brief(f.told.total)}`).join("; ")}`;
    prepare();
    found.forEach((_, i) => explain(i));
    listMoments();
    layout();
    go(frame);
  };
  const layout = () => {
    sizes.clear();
    if (!loaded.length) return;
    drawBack();
    soon();
  };

  // Mazes: beliefs about every cell, beside the truth.

  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"]
    .map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const heatColour = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), i = Math.min(Math.floor(at), VIRIDIS.length - 2);
    return `rgb(${VIRIDIS[i].map((c, k) => Math.round(c + (at - i) * (VIRIDIS[i + 1][k] - c))).join(" ")})`;
  };
  const drawHeats = () => {
    for (const place of document.querySelectorAll(".maps")) {
      const { width, height, maps } = agents[Number(place.dataset.agent)].heat;
      if (!place.children.length) for (const map of maps) {
        const figure = document.createElement("figure"), caption = document.createElement("figcaption");
        const canvas = document.createElement("canvas"), scale = document.createElement("div");
        const low = document.createElement("span"), bar = document.createElement("i"), high = document.createElement("span");
        caption.textContent = map.name;
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", map.text);
        low.textContent = brief(map.low);
        high.textContent = brief(map.high);
        bar.style.background = `linear-gradient(90deg, ${VIRIDIS.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
        scale.className = "scale";
        scale.append(low, bar, high);
        figure.append(caption, canvas, scale);
        place.append(figure);
      }
      maps.forEach((map, m) => {
        const canvas = place.querySelectorAll("canvas")[m];
        const wide = canvas.clientWidth, size = wide / width;
        if (!wide) return;
        canvas.style.height = `${size * height}px`;
        const pen = fit(canvas, wide, size * height);
        pen.fillStyle = "#10141b";
        pen.fillRect(0, 0, wide, size * height);
        map.cells.forEach((row, y) => row.forEach((value, x) => {
          if (value === null) return;
          const share = (value - map.low) / ((map.high - map.low) || 1);
          pen.fillStyle = heatColour(share);
          pen.fillRect(x * size + 0.5, y * size + 0.5, size - 1, size - 1);
          if (size < 30) return;
          pen.fillStyle = share > 0.55 ? "#101010" : "#ffffff";
          pen.font = `${Math.min(13, size * 0.3)}px system-ui, sans-serif`;
          pen.textAlign = "center";
          pen.textBaseline = "middle";
          pen.fillText(brief(value), (x + 0.5) * size, (y + 0.5) * size, size - 4);
        }));
      });
    }
  };

  // What a person does.

  $("toggle").addEventListener("click", () => play(!state.playing));
  $("first").addEventListener("click", () => { play(false); go(0); });
  $("last").addEventListener("click", () => { play(false); go(state.length - 1); });
  $("back").addEventListener("click", () => { play(false); go(state.frame - 1); });
  $("on").addEventListener("click", () => { play(false); go(state.frame + 1); });
  $("seek").addEventListener("input", (event) => go(Number(event.target.value)));
  $("previous-moment").addEventListener("click", () => jump(-1));
  $("next-moment").addEventListener("click", () => jump(1));
  for (const button of document.querySelectorAll("[data-episode]"))
    button.addEventListener("click", () => choose(Number(button.dataset.episode)));
  const follow = (event) => {
    const box = line.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    go(share * (state.length - 1));
  };
  line.addEventListener("pointerdown", (event) => { line.setPointerCapture(event.pointerId); follow(event); });
  line.addEventListener("pointermove", (event) => { if (event.buttons & 1) follow(event); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const onButton = ["BUTTON", "SUMMARY", "A"].includes(event.target.tagName);
    const far = event.shiftKey ? 10 : 1;
    const keys = {
      " ": () => { if (onButton) return false; play(!state.playing); },
      k: () => play(!state.playing),
      ArrowLeft: () => { play(false); go(state.frame - far); },
      ArrowRight: () => { play(false); go(state.frame + far); },
      Home: () => { play(false); go(0); },
      End: () => { play(false); go(state.length - 1); },
      "[": () => faster(-1),
      "]": () => faster(1),
      n: () => jump(1),
      p: () => jump(-1),
      "?": () => { $("help").open = !$("help").open; if ($("help").open) $("help").scrollIntoView({ block: "nearest" }); },
    };
    for (let i = 1; i <= 9; i++) keys[i] = () => choose(i - 1);
    const act = keys[event.key];
    if (act && act() !== false) event.preventDefault();
  });
  let size = "";
  new ResizeObserver(() => {
    const now = `${document.documentElement.clientWidth}x${window.devicePixelRatio}`;
    if (now === size) return;
    size = now;
    layout();
    drawHeats();
  }).observe(document.documentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); layout(); });

  readColours();
  drawHeats();
  const [episode, frame] = location.hash.slice(1).split(".").map(Number);
  choose(episode >= 1 && episode <= episodes.length ? episode - 1 : 0, frame >= 1 ? frame - 1 : 0)
    .then(() => document.body.setAttribute("data-ready", ""));
})();
