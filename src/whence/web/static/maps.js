// Draws score maps over photos, the chosen one large, and draws them again as the controls change.
const settings = { opacity: 0.6, colormap: "auto", threshold: 0, unit: "words", view: "over", outlines: false };
const LONG_SIDE = 256;

const prepareMap = (map) => {
  const rows = +map.dataset.rows, columns = +map.dataset.columns;
  const scale = LONG_SIDE / Math.max(rows, columns);
  const canvas = map.querySelector("canvas");
  canvas.height = Math.round(rows * scale);
  canvas.width = Math.round(columns * scale);
  map.shares = parseNumbers(map.dataset.shares);
  map.scores = parseNumbers(map.dataset.scores);
  map.levels = upsample(map.shares, rows, columns, canvas.height, canvas.width);
  paintMap(map);
};
const findTable = (map) => {
  const signed = map.dataset.signed === "1";
  return tables[settings.colormap === "auto" ? (signed ? "balance" : "heat") : settings.colormap];
};
const paintMap = (map) => {
  const table = findTable(map), strength = settings.opacity * map.dataset.strength;
  const canvas = map.querySelector("canvas"), context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let index = 0; index < map.levels.length; index++) {
    const share = map.levels[index];
    if (Math.abs(share) < settings.threshold || (share < 0 && !table.diverging)) continue;
    const level = table.diverging ? Math.round(128 + 127 * share) : Math.round(255 * share);
    for (let c = 0; c < 3; c++) image.data[4 * index + c] = table.colors[3 * level + c];
    image.data[4 * index + 3] = strength * table.alphas[level];
  }
  context.putImageData(image, 0, 0);
  map.querySelector(".photo").style.filter = `saturate(${Math.max(0, 1 - 1.5 * settings.opacity)})`;
  const ramp = map.closest(".hero")?.querySelector(".scale");
  if (ramp) paintScale(ramp, table);
};
// What the colours mean, from the lowest score to the highest.
const paintScale = (scale, table) => {
  const canvas = makeElement("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const context = canvas.getContext("2d"), image = context.createImageData(256, 1);
  for (let level = 0; level < 256; level++) {
    for (let c = 0; c < 3; c++) image.data[4 * level + c] = table.colors[3 * level + c];
    image.data[4 * level + 3] = table.alphas[level];
  }
  context.putImageData(image, 0, 0);
  const [low, high] = table.diverging ? ["against", "for"] : ["low", "high"];
  scale.replaceChildren(low, canvas, high);
};

// The chosen map, large: with the photo beside it if asked for, and the score of each patch.
const prepareMaps = (section) => {
  const small = [...section.querySelectorAll(".multiples .map")];
  section.dataset.count = small.length;
  section.style.setProperty("--columns", Math.max(1, ...[...section.querySelectorAll(".cells")].map((c) => c.children.length)));
  const hero = section.querySelector(".hero");
  const choose = (map) => {
    for (const one of small) one.setAttribute("aria-pressed", String(one === map));
    hero.replaceChildren(...makeHero(map));
    prepareLarge(hero.querySelector(".map"));
  };
  for (const map of small) map.addEventListener("click", () => choose(map));
  if (small.length) choose(small[0]);
  else hero.remove();
  announceResult(section, "figcaption > :first-child");
};
const announceResult = (section, names) => {
  const list = (selector) => [...new Set([...section.querySelectorAll(selector)].map((one) => one.textContent.trim()))].join(", ");
  if (matchMedia("(max-width: 60rem)").matches) scrollTo(0, 0);
  announce(`Explained: ${list(names)}, by ${list("[data-name]")}.`);
};
const prepareTexts = (section) => announceResult(section, "h3 > :first-child");
const makeHero = (map) => {
  const caption = map.closest("figure").querySelector("figcaption");
  const large = makeElement("div", { class: "map large", tabindex: 0, role: "img", "aria-label": map.getAttribute("aria-label") },
    makeElement("i", { class: "photo" }), makeElement("canvas", { "aria-hidden": "true" }),
    makeElement("svg", { class: "outlines", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      ...["dark", "light"].map((name) => makeElement("path", { class: name, d: map.dataset.outlines }))),
    makeElement("i", { class: "cursor", hidden: "" }), makeElement("output", { class: "readout" }));
  for (const name of ["rows", "columns", "signed", "scores", "shares", "method", "strength"]) large.dataset[name] = map.dataset[name];
  const title = makeElement("p", { class: "title" }, ...[...caption.children].slice(0, 2).map((part) => part.cloneNode(true)),
    makeElement("span", { class: "note" }, `by ${map.dataset.method}`), makeElement("span", { class: "scale note" }));
  const beside = makeElement("div", { class: "frame alone", role: "img", "aria-label": "The photo" },
    makeElement("i", { class: "photo" }));
  const says = caption.querySelector(".says");
  return [title, makeElement("div", { class: "frames" }, beside, makeElement("div", { class: "frame" }, large)), ...(says ? [says.cloneNode(true)] : [])];
};
const prepareLarge = (map) => {
  map.dataset.drawn = "";
  prepareMap(map);
  const rows = +map.dataset.rows, columns = +map.dataset.columns;
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    showScore(map,
      Math.floor(((event.clientY - box.top) / box.height) * rows),
      Math.floor(((event.clientX - box.left) / box.width) * columns));
  });
  map.addEventListener("pointerleave", () => showScore(map, -1, -1));
  map.addEventListener("blur", () => showScore(map, -1, -1));
  map.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in step)) return;
    event.preventDefault();
    const [down, right] = step[event.key];
    const [row, column] = map.patch ?? [0, 0];
    const move = map.patch ? 1 : 0;
    showScore(map,
      Math.min(rows - 1, Math.max(0, row + move * down)),
      Math.min(columns - 1, Math.max(0, column + move * right)));
  });
};
const showScore = (map, row, column) => {
  const rows = +map.dataset.rows, columns = +map.dataset.columns;
  const inside = row >= 0 && column >= 0 && row < rows && column < columns;
  const cursor = map.querySelector(".cursor"), readout = map.querySelector(".readout");
  cursor.hidden = !inside;
  map.patch = inside ? [row, column] : null;
  readout.textContent = "";
  if (!inside) return;
  Object.assign(cursor.style, {
    left: `${(100 * column) / columns}%`, top: `${(100 * row) / rows}%`,
    width: `${100 / columns}%`, height: `${100 / rows}%`,
  });
  // Beside the patch, towards the middle of the map, so that it is never cut off.
  readout.style.top = row < rows / 2 ? `${(100 * (row + 1)) / rows}%` : "auto";
  readout.style.bottom = row < rows / 2 ? "auto" : `${100 - (100 * row) / rows}%`;
  readout.style.left = column < columns / 2 ? `${(100 * column) / columns}%` : "auto";
  readout.style.right = column < columns / 2 ? "auto" : `${100 - (100 * (column + 1)) / columns}%`;
  readout.textContent = describeScore(map, row, column, map.scores[row * columns + column]);
};
const describeScore = (map, row, column, score) => {
  const largest = map.scores.reduce((most, one) => Math.max(most, Math.abs(one)), 0);
  const share = largest ? Math.round((100 * Math.abs(score)) / largest) : 0;
  const side = map.dataset.signed !== "1" || score === 0 ? "" : score > 0 ? ", for the class" : ", against it";
  return `row ${row + 1}, column ${column + 1}: ${score.toPrecision(3)} (${share}% of the strongest${side})`;
};
const paintWords = (words) => {
  for (const word of words.querySelectorAll("span"))
    word.classList.toggle("below", Math.abs(+word.dataset.share) < settings.threshold);
};

const applySettings = () => {
  document.querySelectorAll(".whence .map").forEach((map) => map.levels && paintMap(map));
  document.querySelectorAll(".whence.texts .words").forEach(paintWords);
  showSettings();
};
const showSettings = () => {
  document.documentElement.dataset.whenceUnit = settings.unit;
  document.documentElement.dataset.whenceView = settings.view;
  document.documentElement.toggleAttribute("data-whence-outlines", settings.outlines);
};
document.addEventListener("input", (event) => {
  const { control } = event.target.dataset ?? {};
  if (!control) return;
  const value = event.target.value;
  settings[control] = { range: +value, checkbox: event.target.checked }[event.target.type] ?? value;
  for (const other of document.querySelectorAll(`[data-control="${control}"]`))
    if (other !== event.target && !["radio", "checkbox"].includes(other.type)) other.value = value;
  requestAnimationFrame(applySettings);
});
showSettings();
