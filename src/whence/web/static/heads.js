// Draws the attention of one token: a contact sheet of all heads, and one layer in colours.
const prepareHeads = (box) => {
  const data = JSON.parse(box.dataset.heads);
  const layers = data.weights.map((heads) => heads.map(decodeBytes));
  const most = Math.max(...layers.map((heads) => heads.length));
  const sheet = box.querySelector(".sheet");
  sheet.style.setProperty("--heads", most);
  sheet.style.setProperty("--cell", data.grid ? "96px" : "240px");
  layers.forEach((heads, index) => {
    sheet.append(makeElement("span", { class: "number" }, `${data.layers[index]}`));
    for (let head = 0; head < most; head++)
      sheet.append(heads[head] ? drawHead(data, heads[head], index, head) : makeElement("span"));
  });
  const hidden = new Set();
  const slider = makeElement("input", { type: "range", min: 0, max: layers.length - 1, value: layers.length - 1 });
  const layerLabel = makeElement("output");
  const picture = data.grid ? makeHeadPhoto(data) : makeHeadTokens(data);
  const show = () => {
    layerLabel.textContent = `layer ${data.layers[+slider.value]}`;
    picture.show(layers[+slider.value], hidden, data.largest[+slider.value]);
  };
  const chips = Array.from({ length: most }, (_, head) => {
    const chip = makeElement("button", { type: "button", "aria-pressed": "true" }, `head ${head}`);
    chip.style.setProperty("--color", data.colors[head]);
    chip.addEventListener("click", () => {
      hidden.has(head) ? hidden.delete(head) : hidden.add(head);
      chip.setAttribute("aria-pressed", String(!hidden.has(head)));
      show();
    });
    return chip;
  });
  slider.addEventListener("input", show);
  box.querySelector(".layer").append(
    makeElement("h2", {}, "All heads of one layer"),
    makeElement("div", { class: "controls" }, makeElement("label", {}, "Layer ", slider, " ", layerLabel)),
    makeElement("div", { class: "chips" }, ...chips), picture);
  show();
};
const drawHead = (data, shares, layer, head) => {
  const [rows, columns] = data.grid ?? [1, shares.length];
  const about = `layer ${data.layers[layer]}, head ${head}: largest weight ${data.largest[layer][head]}`;
  const canvas = makeElement("canvas", { width: columns, height: rows, role: "img", title: about, "aria-label": about });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  shares.forEach((share, index) => {
    for (let c = 0; c < 3; c++) image.data[4 * index + c] = tables.heat.colors[3 * share + c];
    image.data[4 * index + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
};
const makeHeadPhoto = (data) => {
  const [rows, columns] = data.grid;
  const canvas = makeElement("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const view = makeElement("div", { class: "view", role: "img", "aria-label": "Each head in its colour" },
    makeElement("i", { class: "photo" }), canvas);
  const colors = data.colors.map(parseColor);
  view.show = (heads, hidden) => {
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    for (let index = 0; index < rows * columns; index++) {
      let sum = 0, largest = 0;
      const mixed = [0, 0, 0];
      heads.forEach((shares, head) => {
        if (hidden.has(head)) return;
        // Squared, so that a patch takes the colour of the head that looks at it most.
        const weight = (shares[index] / 255) ** 2;
        sum += weight;
        largest = Math.max(largest, shares[index]);
        for (let c = 0; c < 3; c++) mixed[c] += weight * colors[head][c];
      });
      for (let c = 0; c < 3; c++) image.data[4 * index + c] = sum ? mixed[c] / sum : 0;
      image.data[4 * index + 3] = largest * 0.9;
    }
    context.putImageData(image, 0, 0);
  };
  return view;
};
const makeHeadTokens = (data) => {
  const view = makeElement("p", { class: "view tokens", dir: "auto" });
  view.show = (heads, hidden, largest) => view.replaceChildren(...data.names.map((name, index) => {
    const bars = heads.map((shares, head) => {
      const share = hidden.has(head) ? 0 : shares[index] / 255;
      const bar = makeElement("i", { title: `head ${head}: ${(share * largest[head]).toPrecision(2)}` });
      bar.style.background = data.colors[head];
      bar.style.opacity = share;
      return bar;
    });
    return makeElement("span", {}, makeElement("b", {}, name), ...bars);
  }));
  return view;
};
