"use strict";
(() => {
  const list = document.getElementById("inputs");
  const form = document.getElementById("choose");
  const count = document.getElementById("count");
  const fields = form.elements;
  const parseNumbers = (text) => text.split(" ").map((one) => (one === "" ? null : Number(one)));
  const searched = ".name, .class, .words, .error, .notes";

  const inputs = [...list.children].map((element, index) => ({
    element,
    given: index,
    name: element.querySelector(".name").textContent,
    class: element.dataset.class || null,
    probability: parseNumbers(element.dataset.probability)[0],
    scores: parseNumbers(element.dataset.faithfulness),
    failed: element.dataset.failed === "1",
    text: null,
  }));

  // Texts are joined when first searched, as a thousand take a while.
  const readText = (one) => {
    if (one.text === null) {
      const parts = [...one.element.querySelectorAll(searched)].map((part) => part.textContent);
      one.text = parts.join(" ").toLowerCase();
    }
    return one.text;
  };

  const isWithin = (value, from, to) => {
    if (from.value === "" && to.value === "") return true;
    if (value === null) return false;
    return (from.value === "" || value >= Number(from.value)) &&
      (to.value === "" || value <= Number(to.value));
  };

  const score = (one) => one.scores[fields.method ? fields.method.selectedIndex : 0] ?? null;
  const percent = (one) => (one.probability === null ? null : 100 * one.probability);
  const keys = {
    given: (one) => one.given,
    name: (one) => one.name,
    class: (one) => one.class,
    probability: percent,
    faithfulness: score,
  };

  const filter = () => {
    const terms = fields.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    return inputs.filter((one) =>
      (fields.class.value === "" || one.class === fields.class.value) &&
      (fields.state.value === "" || one.failed === (fields.state.value === "failed")) &&
      isWithin(percent(one), fields.probabilityFrom, fields.probabilityTo) &&
      isWithin(score(one), fields.faithfulnessFrom, fields.faithfulnessTo) &&
      terms.every((term) => readText(one).includes(term)));
  };

  const compare = (one, other) => {
    const key = keys[fields.sort.value];
    const a = key(one), b = key(other);
    // Inputs without a value come last in either order.
    if (a === null || b === null) return (a === null) - (b === null) || one.given - other.given;
    const order = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return (fields.order.value === "down" ? -order : order) || one.given - other.given;
  };

  const show = () => {
    const shown = filter().sort(compare);
    list.replaceChildren(...shown.map((one) => one.element));
    count.value = `${shown.length} of ${inputs.length} shown`;
  };

  const applyOpacity = () => {
    if (fields.opacity) list.style.setProperty("--opacity", fields.opacity.value / 100);
  };

  const names = [...new Set(inputs.map((one) => one.class).filter(Boolean))];
  for (const name of names.sort((a, b) => a.localeCompare(b))) fields.class.add(new Option(name));

  let frame = 0;
  form.addEventListener("input", (event) => {
    if (event.target === fields.opacity) return applyOpacity();
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(show);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { applyOpacity(); show(); }));
  // On a phone, the other fields would fill the screen.
  const more = form.querySelector(".more");
  more.addEventListener("click", () => {
    more.setAttribute("aria-expanded", String(form.classList.toggle("open")));
  });
  form.hidden = false;
  applyOpacity();
  show();
})();
