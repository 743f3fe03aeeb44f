// Draws the curves of each method, and the photo or text with its parts removed at each step.
const ORDERS = {
  most: ["most relevant first", ""],
  least: ["least relevant first", "6 4"],
  random: ["random", "1 4"],
};
const prepareCurves = (box) => {
  const curves = JSON.parse(box.dataset.curves);
  const orders = Object.keys(curves[0].curves);
  const last = curves[0].steps.length - 1;
  const rows = [...box.querySelectorAll("article")].map((row, index) => {
    const curve = curves[index];
    const picture = curve.masks ? makeMaskedPhoto(curve) : makeMaskedText(curve);
    const caption = makeElement("p", { class: "note" });
    row.querySelector(".plot").append(drawPlot(curve));
    row.querySelector(".step").append(picture, caption);
    return { curve, picture, caption };
  });
  box.querySelector(".legend").append(...makeLegend(orders));
  const slider = makeElement("input", { type: "range", min: 0, max: last, value: 3, "data-step": "" });
  const choice = makeElement("select", {}, ...orders.map((o) => makeElement("option", { value: o }, ORDERS[o][0])));
  const stepLabel = makeElement("output");
  const show = () => {
    const step = +slider.value, order = choice.value;
    stepLabel.textContent = `${Math.round(100 * curves[0].steps[step])}% removed`;
    for (const { curve, picture, caption } of rows) {
      picture.show(step, order);
      caption.textContent = `what is left: ${formatPercent(curve.curves[order][step])}`;
    }
    box.querySelectorAll(".now").forEach((line) => line.setAttribute("transform",
      `translate(${(step / last) * WIDTH} 0)`));
  };
  slider.addEventListener("input", show);
  choice.addEventListener("change", show);
  box.querySelector(".masked").append(makeElement("div", { class: "controls" },
    makeElement("label", {}, "Step ", slider, " ", stepLabel), makeElement("label", {}, "Removed ", choice)));
  show();
};
const WIDTH = 300, HEIGHT = 150;
const drawPlot = ({ color, curves, steps }) => {
  const svg = makeElement("svg", { viewBox: `-40 -8 ${WIDTH + 52} ${HEIGHT + 44}`, "aria-hidden": "true" });
  const last = steps.length - 1;
  const place = (p, index) => `${(index / last) * WIDTH} ${HEIGHT * (1 - p)}`;
  for (const p of [0, 0.5, 1]) {
    const y = HEIGHT * (1 - p);
    svg.append(makeElement("line", { class: "rule", x1: 0, x2: WIDTH, y1: y, y2: y }),
      makeElement("text", { x: -6, y: y + 4, "text-anchor": "end" }, `${100 * p}%`));
  }
  steps.forEach((share, index) => index % 3 || svg.append(makeElement("text",
    { x: (index / last) * WIDTH, y: HEIGHT + 16, "text-anchor": "middle" }, `${Math.round(100 * share)}%`)));
  svg.append(makeElement("text", { x: WIDTH / 2, y: HEIGHT + 32, "text-anchor": "middle" }, "removed"));
  const between = [...curves.most.map(place), ...curves.least.map(place).reverse()];
  svg.append(makeElement("path", { class: "area", d: `M${between.join("L")}Z`, style: `fill:${color}` }),
    makeElement("line", { class: "now", x1: 0, x2: 0, y1: 0, y2: HEIGHT }));
  for (const [order, values] of Object.entries(curves))
    svg.append(makeElement("path", { d: `M${values.map(place).join("L")}`,
      stroke: order === "random" ? "currentColor" : color, "stroke-dasharray": ORDERS[order][1] }));
  return svg;
};
const makeLegend = (orders) => orders.map((order) => makeElement("span", {},
  makeElement("svg", { viewBox: "0 0 28 8", class: "key", "aria-hidden": "true" },
    makeElement("path", { d: "M0 4L28 4", stroke: "currentColor", "stroke-dasharray": ORDERS[order][1] })),
  ORDERS[order][0]));
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
