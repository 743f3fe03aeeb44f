// Draws deletion curves, and the photo or text with its parts deleted at each step.
const ORDERS = {
  most: ["most relevant first", ""],
  least: ["least relevant first", "6 4"],
  random: ["random", "1 4"],
};
const prepareCurves = (box) => {
  const curves = JSON.parse(box.dataset.curves);
  box.querySelector(".plot").append(drawPlot(curves), makeLegend(curves));
  const orders = Object.keys(curves[0].curves);
  const last = curves[0].steps.length - 1;
  const slider = makeElement("input", { type: "range", min: 0, max: last, value: 3, "data-step": "" });
  const choice = makeElement("select", {}, ...orders.map((o) => makeElement("option", { value: o }, ORDERS[o][0])));
  const cells = curves.map((curve) => {
    const picture = curve.masks ? makeMaskedPhoto(curve) : makeMaskedText(curve);
    const caption = makeElement("figcaption");
    return { curve, picture, caption, figure: makeElement("figure", {}, picture, caption) };
  });
  const stepLabel = makeElement("output");
  const show = () => {
    const step = +slider.value, order = choice.value;
    stepLabel.textContent = `${Math.round(100 * curves[0].steps[step])}% removed`;
    for (const { curve, picture, caption } of cells) {
      picture.show(step, order);
      caption.textContent = `${curve.method}: ${formatPercent(curve.curves[order][step])}`;
    }
    box.querySelectorAll(".now").forEach((line) => line.setAttribute("transform",
      `translate(${(step / last) * WIDTH} 0)`));
  };
  slider.addEventListener("input", show);
  choice.addEventListener("change", show);
  box.querySelector(".masked").append(
    makeElement("div", { class: "controls" },
      makeElement("label", {}, "Step ", slider, " ", stepLabel), makeElement("label", {}, "Removed ", choice)),
    makeElement("div", { class: "cells" }, ...cells.map((cell) => cell.figure)));
  show();
};
const WIDTH = 460, HEIGHT = 220;
const drawPlot = (curves) => {
  const svg = makeElement("svg", { viewBox: `-60 -14 ${WIDTH + 90} ${HEIGHT + 56}` });
  for (const p of [0, 0.25, 0.5, 0.75, 1]) {
    const y = HEIGHT * (1 - p);
    svg.append(makeElement("line", { class: "rule", x1: 0, x2: WIDTH, y1: y, y2: y }),
      makeElement("text", { x: -8, y: y + 4, "text-anchor": "end" }, `${100 * p}%`));
  }
  const steps = curves[0].steps, last = steps.length - 1;
  steps.forEach((share, index) => index % 3 || svg.append(makeElement("text",
    { x: (index / last) * WIDTH, y: HEIGHT + 18, "text-anchor": "middle" }, `${Math.round(100 * share)}%`)));
  svg.append(makeElement("text", { x: WIDTH / 2, y: HEIGHT + 34, "text-anchor": "middle" }, "removed"),
    makeElement("line", { class: "now", x1: 0, x2: 0, y1: 0, y2: HEIGHT }));
  const draw = (values, color, dash) => svg.append(makeElement("path", {
    d: values.map((p, index) => `${index ? "L" : "M"}${(index / last) * WIDTH} ${HEIGHT * (1 - p)}`).join(""),
    stroke: color, "stroke-dasharray": dash,
  }));
  if (curves[0].curves.random) draw(curves[0].curves.random, "currentColor", ORDERS.random[1]);
  for (const { color, curves: byOrder } of curves)
    for (const order of ["least", "most"]) draw(byOrder[order], color, ORDERS[order][1]);
  return svg;
};
const makeLegend = (curves) => {
  const makeKey = (color, dash, text) => {
    const line = makeElement("svg", { viewBox: "0 0 28 8", class: "key" },
      makeElement("path", { d: "M0 4L28 4", stroke: color, "stroke-dasharray": dash }));
    return makeElement("span", {}, line, text);
  };
  const orders = Object.keys(curves[0].curves);
  return makeElement("p", { class: "legend" },
    ...curves.map(({ color, method }) => makeKey(color, "", method)),
    ...orders.map((order) => makeKey("currentColor", ORDERS[order][1], ORDERS[order][0])));
};
const makeMaskedPhoto = (curve) => {
  const canvas = makeElement("canvas", { "aria-hidden": "true" });
  const view = makeElement("div", { class: "view" }, makeElement("i", { class: "photo" }), canvas);
  const deletionSteps = {};
  const load = async (order) => {
    const image = new Image();
    image.src = curve.masks[order];
    await image.decode();
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    deletionSteps[order] = context.getImageData(0, 0, canvas.width, canvas.height);
  };
  view.show = async (step, order) => {
    view.request = [step, order].join();
    if (!deletionSteps[order]) await load(order);
    if (view.request !== [step, order].join()) return;
    const { data, width, height } = deletionSteps[order];
    const black = new ImageData(width, height);
    for (let index = 0; index < width * height; index++)
      black.data[4 * index + 3] = data[4 * index] <= step ? 255 : 0;
    canvas.getContext("2d").putImageData(black, 0, 0);
  };
  return view;
};
const makeMaskedText = (curve) => {
  const view = makeElement("p", { class: "view", dir: "auto" });
  view.show = (step, order) => view.replaceChildren(...curve.words.flatMap((word, index) => {
    const isDeleted = curve.deletionSteps[order][index] <= step;
    return [makeElement(isDeleted ? "del" : "span", {}, word), curve.spaces[index] ? " " : ""];
  }));
  return view;
};
