// Draws every new element that the server sent, as soon as it arrives.
const drawers = {
  ".whence .map:not(.large)": prepareMap, ".whence.maps": prepareMaps, ".whence.texts": prepareTexts, ".whence .curves": prepareCurves, ".whence.heads": prepareHeads,
  ".whence .generation": prepareGeneration, ".cards label > span": prepareCard, ".toast-header": prepareToast,
};
const drawNew = () => {
  for (const [selector, prepare] of Object.entries(drawers))
    for (const element of document.querySelectorAll(`:is(${selector}):not([data-drawn])`)) {
      element.dataset.drawn = "";
      prepare(element);
    }
  document.querySelectorAll(".whence.texts .words").forEach(paintWords);
  showBusy();
  showSummary();
  showTabInAddress();
};
let waiting = false;
new MutationObserver(() => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawNew(); });
}).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["class"] });
