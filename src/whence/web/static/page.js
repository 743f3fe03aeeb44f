// Draws what the server marked with data- attributes, and draws it again as the controls move.
"use strict";
(() => {
  const tables = /*TABLES*/ {};
  const look = { opacity: 0.6, colormap: "auto", threshold: 0, unit: "words" };
  const LONG_SIDE = 256;

  // --- small things ---------------------------------------------------------------------------
  const make = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "path", "line", "text", "circle"].includes(tag);
    const made = svg
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const numbers = (text) => Float32Array.from(text.split(" "), Number);
  const percent = (p) => `${(100 * p).toFixed(1)}%`;

  // Bicubic with a = -0.5 and weights renormalised at edges, as the library resizes maps.
  const cubic = (x) => {
    x = Math.abs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
  };
  const weights = (from, to) =>
    Array.from({ length: to }, (_, at) => {
      const centre = ((at + 0.5) * from) / to - 0.5;
      const first = Math.max(0, Math.floor(centre) - 1);
      const last = Math.min(from - 1, Math.floor(centre) + 2);
      const taps = [];
      let sum = 0;
      for (let i = first; i <= last; i++) {
        taps.push([i, cubic(i - centre)]);
        sum += taps.at(-1)[1];
      }
      return taps.map(([i, w]) => [i, w / sum]);
    });
  const upsampled = (values, rows, columns, height, width) => {
    const wide = new Float32Array(rows * width);
    weights(columns, width).forEach((taps, x) => {
      for (let r = 0; r < rows; r++)
        for (const [c, w] of taps) wide[r * width + x] += w * values[r * columns + c];
    });
    const full = new Float32Array(height * width);
    weights(rows, height).forEach((taps, y) => {
      for (const [r, w] of taps)
        for (let x = 0; x < width; x++) full[y * width + x] += w * wide[r * width + x];
    });
    let low = Infinity, high = -Infinity;
    for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
    return full.map((v) => Math.min(high, Math.max(low, v)));
  };

  // --- maps over photos -----------------------------------------------------------------------
  const prepareMap = (map) => {
    const rows = +map.dataset.rows, columns = +map.dataset.columns;
    const scale = LONG_SIDE / Math.max(rows, columns);
    const canvas = map.querySelector("canvas");
    canvas.height = Math.round(rows * scale);
    canvas.width = Math.round(columns * scale);
    map.shares = numbers(map.dataset.shares);
    map.scores = numbers(map.dataset.scores);
    map.levels = upsampled(map.shares, rows, columns, canvas.height, canvas.width);
    map.append(make("i", { class: "cursor", hidden: "" }), make("output", { class: "readout" }));
    map.addEventListener("pointermove", (event) => {
      const box = map.getBoundingClientRect();
      point(map,
        Math.floor(((event.clientY - box.top) / box.height) * rows),
        Math.floor(((event.clientX - box.left) / box.width) * columns));
    });
    map.addEventListener("pointerleave", () => point(map, -1, -1));
    map.addEventListener("blur", () => point(map, -1, -1));
    map.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!(event.key in step)) return;
      event.preventDefault();
      const [down, right] = step[event.key];
      const [row, column] = map.at ?? [0, 0];
      const keep = map.at ? 1 : 0;
      point(map,
        Math.min(rows - 1, Math.max(0, row + keep * down)),
        Math.min(columns - 1, Math.max(0, column + keep * right)));
    });
    paintMap(map);
  };
  const point = (map, row, column) => {
    const rows = +map.dataset.rows, columns = +map.dataset.columns;
    const inside = row >= 0 && column >= 0 && row < rows && column < columns;
    const cursor = map.querySelector(".cursor"), readout = map.querySelector(".readout");
    cursor.hidden = !inside;
    map.at = inside ? [row, column] : null;
    readout.textContent = "";
    if (!inside) return;
    Object.assign(cursor.style, {
      left: `${(100 * column) / columns}%`, top: `${(100 * row) / rows}%`,
      width: `${100 / columns}%`, height: `${100 / rows}%`,
    });
    const at = row * columns + column;
    const score = map.scores[at].toPrecision(3), share = map.shares[at].toFixed(2);
    readout.textContent = `row ${row + 1}, column ${column + 1}: ${score} (${share} of the largest)`;
  };
  const paintMap = (map) => {
    const signed = map.dataset.signed === "1";
    const name = look.colormap === "auto" ? (signed ? "balance" : "heat") : look.colormap;
    const table = tables[name];
    const canvas = map.querySelector("canvas"), context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    for (let at = 0; at < map.levels.length; at++) {
      const share = map.levels[at];
      if (Math.abs(share) < look.threshold || (share < 0 && !table.diverging)) continue;
      const level = table.diverging ? Math.round(128 + 127 * share) : Math.round(255 * share);
      for (let c = 0; c < 3; c++) image.data[4 * at + c] = table.colors[3 * level + c];
      image.data[4 * at + 3] = look.opacity * table.alphas[level];
    }
    context.putImageData(image, 0, 0);
    map.querySelector(".photo").style.filter = `saturate(${1 - look.opacity})`;
  };
  const paintWords = (words) => {
    for (const word of words.querySelectorAll("span"))
      word.classList.toggle("below", Math.abs(+word.dataset.share) < look.threshold);
  };

  // --- controls -------------------------------------------------------------------------------
  const apply = () => {
    document.querySelectorAll(".whence .map").forEach((map) => map.levels && paintMap(map));
    document.querySelectorAll(".whence .words").forEach(paintWords);
    document.documentElement.dataset.whenceUnit = look.unit;
  };
  document.addEventListener("input", (event) => {
    const { control } = event.target.dataset ?? {};
    if (!control) return;
    const text = event.target.value;
    look[control] = event.target.type === "range" ? +text : text;
    for (const other of document.querySelectorAll(`[data-control="${control}"]`))
      if (other !== event.target && other.type !== "radio") other.value = text;
    requestAnimationFrame(apply);
  });

  // --- curves ---------------------------------------------------------------------------------
  const ORDERS = {
    most: ["most relevant first", ""],
    least: ["least relevant first", "6 4"],
    random: ["random", "1 4"],
  };
  const prepareCurves = (box) => {
    const curves = JSON.parse(box.dataset.curves);
    box.querySelector(".plot").append(plot(curves), legend(curves));
    const orders = Object.keys(curves[0].curves);
    const last = curves[0].steps.length - 1;
    const slider = make("input", { type: "range", min: 0, max: last, value: 3, "data-step": "" });
    const choice = make("select", {}, ...orders.map((o) => make("option", { value: o }, ORDERS[o][0])));
    const cells = curves.map((curve) => {
      const picture = curve.masks ? maskedPhoto(curve) : maskedText(curve);
      const caption = make("figcaption");
      return { curve, picture, caption, figure: make("figure", {}, picture, caption) };
    });
    const told = make("output");
    const show = () => {
      const step = +slider.value, order = choice.value;
      told.textContent = `${Math.round(100 * curves[0].steps[step])}% removed`;
      for (const { curve, picture, caption } of cells) {
        picture.show(step, order);
        caption.textContent = `${curve.method}: ${percent(curve.curves[order][step])}`;
      }
      box.querySelectorAll(".now").forEach((line) => line.setAttribute("transform",
        `translate(${(step / last) * WIDTH} 0)`));
    };
    slider.addEventListener("input", show);
    choice.addEventListener("change", show);
    box.querySelector(".masked").append(
      make("div", { class: "controls" },
        make("label", {}, "Step ", slider, " ", told), make("label", {}, "Removed ", choice)),
      make("div", { class: "cells" }, ...cells.map((cell) => cell.figure)));
    show();
  };
  const WIDTH = 460, HEIGHT = 220;
  const plot = (curves) => {
    const svg = make("svg", { viewBox: `-60 -14 ${WIDTH + 90} ${HEIGHT + 56}` });
    for (const p of [0, 0.25, 0.5, 0.75, 1]) {
      const y = HEIGHT * (1 - p);
      svg.append(make("line", { class: "rule", x1: 0, x2: WIDTH, y1: y, y2: y }),
        make("text", { x: -8, y: y + 4, "text-anchor": "end" }, `${100 * p}%`));
    }
    const steps = curves[0].steps, last = steps.length - 1;
    steps.forEach((share, at) => at % 3 || svg.append(make("text",
      { x: (at / last) * WIDTH, y: HEIGHT + 18, "text-anchor": "middle" }, `${Math.round(100 * share)}%`)));
    svg.append(make("text", { x: WIDTH / 2, y: HEIGHT + 34, "text-anchor": "middle" }, "removed"),
      make("line", { class: "now", x1: 0, x2: 0, y1: 0, y2: HEIGHT }));
    const draw = (values, color, dash) => svg.append(make("path", {
      d: values.map((p, at) => `${at ? "L" : "M"}${(at / last) * WIDTH} ${HEIGHT * (1 - p)}`).join(""),
      stroke: color, "stroke-dasharray": dash,
    }));
    if (curves[0].curves.random) draw(curves[0].curves.random, "currentColor", ORDERS.random[1]);
    for (const { color, curves: of } of curves)
      for (const order of ["least", "most"]) draw(of[order], color, ORDERS[order][1]);
    return svg;
  };
  const legend = (curves) => {
    const key = (color, dash, text) => {
      const line = make("svg", { viewBox: "0 0 28 8", class: "key" },
        make("path", { d: "M0 4L28 4", stroke: color, "stroke-dasharray": dash }));
      return make("span", {}, line, text);
    };
    const orders = Object.keys(curves[0].curves);
    return make("p", { class: "legend" },
      ...curves.map(({ color, method }) => key(color, "", method)),
      ...orders.map((order) => key("currentColor", ORDERS[order][1], ORDERS[order][0])));
  };
  const maskedPhoto = (curve) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const view = make("div", { class: "view" }, make("i", { class: "photo" }), canvas);
    const turns = {};
    const load = async (order) => {
      const image = new Image();
      image.src = curve.masks[order];
      await image.decode();
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      turns[order] = context.getImageData(0, 0, canvas.width, canvas.height);
    };
    view.show = async (step, order) => {
      view.wanted = [step, order].join();
      if (!turns[order]) await load(order);
      if (view.wanted !== [step, order].join()) return;
      const { data, width, height } = turns[order];
      const black = new ImageData(width, height);
      for (let at = 0; at < width * height; at++)
        black.data[4 * at + 3] = data[4 * at] <= step ? 255 : 0;
      canvas.getContext("2d").putImageData(black, 0, 0);
    };
    return view;
  };
  const maskedText = (curve) => {
    const view = make("p", { class: "view", dir: "auto" });
    view.show = (step, order) => view.replaceChildren(...curve.words.flatMap((word, at) => {
      const gone = curve.turns[order][at] <= step;
      return [make(gone ? "del" : "span", {}, word), curve.spaces[at] ? " " : ""];
    }));
    return view;
  };

  // --- heads ----------------------------------------------------------------------------------
  const prepareHeads = (box) => {
    const found = JSON.parse(box.dataset.heads);
    const layers = found.rows.map((rows) => rows.map(bytes));
    const most = Math.max(...layers.map((heads) => heads.length));
    const sheet = box.querySelector(".sheet");
    sheet.style.setProperty("--heads", most);
    sheet.style.setProperty("--cell", found.grid ? "96px" : "240px");
    layers.forEach((heads, at) => {
      sheet.append(make("span", { class: "number" }, `${found.layers[at]}`));
      for (let head = 0; head < most; head++)
        sheet.append(heads[head] ? small(found, heads[head], at, head) : make("span"));
    });
    const hidden = new Set();
    const slider = make("input", { type: "range", min: 0, max: layers.length - 1, value: layers.length - 1 });
    const told = make("output");
    const picture = found.grid ? coloredPhoto(found) : coloredTokens(found);
    const show = () => {
      told.textContent = `layer ${found.layers[+slider.value]}`;
      picture.show(layers[+slider.value], hidden, found.largest[+slider.value]);
    };
    const chips = Array.from({ length: most }, (_, head) => {
      const chip = make("button", { type: "button", "aria-pressed": "true" }, `head ${head}`);
      chip.style.setProperty("--color", found.colors[head]);
      chip.addEventListener("click", () => {
        hidden.has(head) ? hidden.delete(head) : hidden.add(head);
        chip.setAttribute("aria-pressed", String(!hidden.has(head)));
        show();
      });
      return chip;
    });
    slider.addEventListener("input", show);
    box.querySelector(".layer").append(
      make("h3", {}, "All heads of one layer"),
      make("div", { class: "controls" }, make("label", {}, "Layer ", slider, " ", told)),
      make("div", { class: "chips" }, ...chips), picture);
    show();
  };
  const small = (found, shares, layer, head) => {
    const [rows, columns] = found.grid ?? [1, shares.length];
    const about = `layer ${found.layers[layer]}, head ${head}: largest weight ${found.largest[layer][head]}`;
    const canvas = make("canvas", { width: columns, height: rows, role: "img", title: about, "aria-label": about });
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    shares.forEach((share, at) => {
      for (let c = 0; c < 3; c++) image.data[4 * at + c] = tables.heat.colors[3 * share + c];
      image.data[4 * at + 3] = 255;
    });
    context.putImageData(image, 0, 0);
    return canvas;
  };
  const rgb = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const coloredPhoto = (found) => {
    const [rows, columns] = found.grid;
    const canvas = make("canvas", { width: columns, height: rows, "aria-hidden": "true" });
    const view = make("div", { class: "view", role: "img", "aria-label": "Each head in its colour" },
      make("i", { class: "photo" }), canvas);
    const colors = found.colors.map(rgb);
    view.show = (heads, hidden) => {
      const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
      for (let at = 0; at < rows * columns; at++) {
        let sum = 0, largest = 0;
        const mixed = [0, 0, 0];
        heads.forEach((shares, head) => {
          if (hidden.has(head)) return;
          // Squared, so that a patch takes the colour of the head that looks at it most.
          const weight = (shares[at] / 255) ** 2;
          sum += weight;
          largest = Math.max(largest, shares[at]);
          for (let c = 0; c < 3; c++) mixed[c] += weight * colors[head][c];
        });
        for (let c = 0; c < 3; c++) image.data[4 * at + c] = sum ? mixed[c] / sum : 0;
        image.data[4 * at + 3] = largest * 0.9;
      }
      context.putImageData(image, 0, 0);
    };
    return view;
  };
  const coloredTokens = (found) => {
    const view = make("p", { class: "view tokens", dir: "auto" });
    view.show = (heads, hidden, largest) => view.replaceChildren(...found.names.map((name, at) => {
      const bars = heads.map((shares, head) => {
        const share = hidden.has(head) ? 0 : shares[at] / 255;
        const bar = make("i", { title: `head ${head}: ${(share * largest[head]).toPrecision(2)}` });
        bar.style.background = found.colors[head];
        bar.style.opacity = share;
        return bar;
      });
      return make("span", {}, make("b", {}, name), ...bars);
    }));
    return view;
  };

  // --- whatever the server sends is drawn when it arrives --------------------------------------
  const kinds = { ".map": prepareMap, ".curves": prepareCurves, ".heads": prepareHeads };
  const drawNew = () => {
    for (const [selector, prepare] of Object.entries(kinds))
      for (const found of document.querySelectorAll(`.whence${selector}:not([data-drawn]), .whence ${selector}:not([data-drawn])`)) {
        found.dataset.drawn = "";
        prepare(found);
      }
    document.querySelectorAll(".whence .words").forEach(paintWords);
  };
  let waiting = false;
  new MutationObserver(() => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawNew(); });
  }).observe(document, { childList: true, subtree: true });
  for (const table of Object.values(tables)) {
    table.colors = bytes(table.colors);
    table.alphas = bytes(table.alphas);
  }
  document.documentElement.dataset.whenceUnit = look.unit;
})();
