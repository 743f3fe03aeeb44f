// Helpers that the other scripts share. `tables` holds the library's colour maps.
const makeElement = (tag, attributes = {}, ...children) => {
  const isSvg = ["svg", "path", "line", "text", "circle"].includes(tag);
  const element = isSvg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
// Tells those who do not see the screen what has changed on it.
const announce = (text) => { document.getElementById("whence-live").textContent = text; };
const decodeBytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const parseNumbers = (text) => Float32Array.from(text.split(" "), Number);
const parseColor = (color) => [1, 3, 5].map((index) => parseInt(color.slice(index, index + 2), 16));
const formatPercent = (p) => `${(100 * p).toFixed(1)}%`;
for (const table of Object.values(tables)) {
  table.colors = decodeBytes(table.colors);
  table.alphas = decodeBytes(table.alphas);
}

// Bicubic with a = -0.5 and weights renormalised at edges, as the library resizes maps.
const cubic = (x) => {
  x = Math.abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
};
const cubicWeights = (from, to) =>
  Array.from({ length: to }, (_, index) => {
    const centre = ((index + 0.5) * from) / to - 0.5;
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
const upsample = (values, rows, columns, height, width) => {
  const wide = new Float32Array(rows * width);
  cubicWeights(columns, width).forEach((taps, x) => {
    for (let r = 0; r < rows; r++)
      for (const [c, w] of taps) wide[r * width + x] += w * values[r * columns + c];
  });
  const full = new Float32Array(height * width);
  cubicWeights(rows, height).forEach((taps, y) => {
    for (const [r, w] of taps)
      for (let x = 0; x < width; x++) full[y * width + x] += w * wide[r * width + x];
  });
  let low = Infinity, high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  return full.map((v) => Math.min(high, Math.max(low, v)));
};
