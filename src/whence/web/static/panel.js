// The panel of settings: cards of methods, and the sheet that it becomes on a phone.
const prepareCard = (text) => {
  const [name, cost, idea] = text.textContent.split("\n");
  if (!idea) return;
  text.replaceChildren(makeElement("b", {}, name), " ", makeElement("small", { class: "cost" }, cost), " ",
    makeElement("small", { class: "idea" }, idea));
};
const closeSheets = () => {
  for (const sheet of document.querySelectorAll(".settings.open")) {
    sheet.classList.remove("open");
    const button = document.querySelector(`[data-sheet="${sheet.id}"]`);
    button?.setAttribute("aria-expanded", "false");
    sheet.parentElement.querySelector(".stage").inert = false;
    if (sheet.contains(document.activeElement)) button?.focus();
  }
  document.documentElement.classList.remove("has-sheet");
};
matchMedia("(max-width: 60rem)").addEventListener("change", () => closeSheets());
const openSheet = (button) => {
  const sheet = document.getElementById(button.dataset.sheet);
  if (!sheet.querySelector(".close-sheet"))
    sheet.prepend(makeElement("button", { type: "button", class: "close-sheet" }, "Done"));
  sheet.classList.add("open");
  button.setAttribute("aria-expanded", "true");
  document.documentElement.classList.add("has-sheet");
  sheet.parentElement.querySelector(".stage").inert = true;
  sheet.querySelector(".close-sheet").focus();
};
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.dataset.sheet) openSheet(button);
  if (button.matches(".close-sheet, .go, .sample")) closeSheets();
  if (button.dataset.press) document.querySelector(button.dataset.press)?.click();
  if ("cards" in button.dataset) {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.closest(".settings").classList.toggle("all", open);
  }
});
for (const name of ["change", "drop"])
  document.addEventListener(name, (event) => {
    if (name === "drop" || event.target.matches?.("input[type=file]")) closeSheets();
  });
// A view that computes something starts by itself when it is opened for the first time.
document.addEventListener("click", (event) => {
  const tab = event.target.closest?.(".views [role=tab]");
  if (!tab) return;
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const view = [...tab.closest(".views").querySelectorAll(":scope > [role=tabpanel]")].find((one) => one.checkVisibility());
    const isNew = view?.querySelector(".details") && !view.querySelector(".details section");
    if (isNew && tab.closest(".workbench").querySelector(".result section")) view.querySelector("button.run")?.click();
  }));
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeSheets(); });
// While something is computed, it can be cancelled.
const showBusy = () => {
  for (const bench of document.querySelectorAll(".workbench"))
    bench.classList.toggle("busy", !!bench.querySelector(".stage .block > .wrap:not(.hide) :is(.progress-text, .eta-bar, .meta-text, .meta-text-center)"));
};
// On a phone, what is shown: the model and the methods.
const showSummary = () => {
  for (const bench of document.querySelectorAll(".workbench")) {
    const model = bench.querySelector(".model input")?.value ?? "";
    const chosen = [...bench.querySelectorAll(".cards :checked")].map((one) => one.closest("label").querySelector("b")?.textContent);
    const text = [model, chosen.join(", ")].filter(Boolean).join(" · ");
    const place = bench.querySelector(".sheet-bar .what");
    if (place && place.textContent !== text) place.textContent = text;
  }
};
// Gradio makes the head of a message a button around another one, which screen readers cannot tell apart.
const prepareToast = (head) => { head.removeAttribute("role"); head.removeAttribute("tabindex"); };
