// Draws score maps over photos, colours words, and draws both again as the controls change.
const settings = { opacity: 0.6, colormap: "auto", threshold: 0, unit: "words" };
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
  map.append(makeElement("i", { class: "cursor", hidden: "" }), makeElement("output", { class: "readout" }));
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
  paintMap(map);
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
  const index = row * columns + column;
  const score = map.scores[index].toPrecision(3), share = map.shares[index].toFixed(2);
  readout.textContent = `row ${row + 1}, column ${column + 1}: ${score} (${share} of the largest)`;
};
const paintMap = (map) => {
  const signed = map.dataset.signed === "1";
  const name = settings.colormap === "auto" ? (signed ? "balance" : "heat") : settings.colormap;
  const table = tables[name];
  const canvas = map.querySelector("canvas"), context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let index = 0; index < map.levels.length; index++) {
    const share = map.levels[index];
    if (Math.abs(share) < settings.threshold || (share < 0 && !table.diverging)) continue;
    const level = table.diverging ? Math.round(128 + 127 * share) : Math.round(255 * share);
    for (let c = 0; c < 3; c++) image.data[4 * index + c] = table.colors[3 * level + c];
    image.data[4 * index + 3] = settings.opacity * table.alphas[level];
  }
  context.putImageData(image, 0, 0);
  map.querySelector(".photo").style.filter = `saturate(${1 - settings.opacity})`;
};
const paintWords = (words) => {
  for (const word of words.querySelectorAll("span"))
    word.classList.toggle("below", Math.abs(+word.dataset.share) < settings.threshold);
};

const applySettings = () => {
  document.querySelectorAll(".whence .map").forEach((map) => map.levels && paintMap(map));
  document.querySelectorAll(".whence.texts .words").forEach(paintWords);
  document.documentElement.dataset.whenceUnit = settings.unit;
};
document.addEventListener("input", (event) => {
  const { control } = event.target.dataset ?? {};
  if (!control) return;
  const value = event.target.value;
  settings[control] = event.target.type === "range" ? +value : value;
  for (const other of document.querySelectorAll(`[data-control="${control}"]`))
    if (other !== event.target && other.type !== "radio") other.value = value;
  requestAnimationFrame(applySettings);
});
document.documentElement.dataset.whenceUnit = settings.unit;
