// Keeps inputs and results in this browser, so that a reload loses nothing. Settings are in the
// part of the address behind "#", which browsers do not send.
const DAY = 24 * 3600 * 1000;
const KINDS = ["image", "text", "generation"];
const UNCHANGED = { __type__: "update" };

const useStore = (mode, use) => new Promise((resolve, reject) => {
  const opening = indexedDB.open("whence", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("work");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const transaction = opening.result.transaction("work", mode);
    const request = use(transaction.objectStore("work"));
    transaction.oncomplete = () => { opening.result.close(); resolve(request?.result); };
    transaction.onerror = () => reject(transaction.error);
  };
});
// Each tab of the browser has its own work.
const getKey = (kind) => {
  let tab = sessionStorage.getItem("whence");
  if (!tab) sessionStorage.setItem("whence", tab = `${Date.now()}-${Math.random()}`);
  return `${tab}/${kind}`;
};
const forgetOld = (store) => {
  const walk = store.openCursor();
  walk.onsuccess = () => {
    const found = walk.result;
    if (!found) return;
    if (Date.now() - found.value.when > DAY) found.delete();
    found.continue();
  };
};

// The settings of a tab as they stand in the address.
const readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const writeAddress = (kind, settings, add) => {
  const words = Object.entries(settings).map(([name, value]) => [name, [value].flat().join(",")]);
  const hash = `#${new URLSearchParams([["tab", kind], ...words.filter(([, value]) => value !== "")])}`;
  if (hash === location.hash) return;
  history[add ? "pushState" : "replaceState"](null, "", hash);
};
const shown = {}, isRestored = {}, waitingWrites = {}, photos = new Map();

// `names` are those of the values: settings, then "input", then results (HTML).
const remember = (kind, names, values) => {
  if (!isRestored[kind]) return;
  const work = sortWork(Object.fromEntries(names.map((name, index) => [name, values[index]])));
  shown[kind] = work.settings;
  if ((readAddress().tab ?? KINDS[0]) === kind) writeAddress(kind, work.settings);
  clearTimeout(waitingWrites[kind]);
  waitingWrites[kind] = setTimeout(() => keep(kind, work), 200);
};
const keep = async (kind, { input, results, settings }) => {
  try {
    const photo = input?.url ? await readPhoto(input.url) : null;
    const record = { when: Date.now(), settings, results, photo, text: photo ? "" : input, name: input?.orig_name };
    await useStore("readwrite", (store) => store.put(record, getKey(kind)));
  } catch { /* without a store, a reload starts anew */ }
};
const readPhoto = async (url) => {
  if (!photos.has(url)) {
    photos.clear();
    photos.set(url, await (await fetch(url)).blob());
  }
  return photos.get(url);
};
const isResult = (name) => name.startsWith("html_");
const sortWork = (work) => {
  const { input, ...others } = work;
  const entries = Object.entries(others);
  const pick = (results) => Object.fromEntries(entries.filter(([name]) => isResult(name) === results));
  return { input, results: pick(true), settings: pick(false) };
};
const restore = async (kind, names, models) => {
  const address = readAddress();
  let record;
  try {
    await useStore("readwrite", forgetOld);
    record = await useStore("readonly", (store) => store.get(getKey(kind)));
  } catch { /* as if nothing was kept */ }
  const settings = { ...record?.settings, ...(address.tab === kind ? parseSettings(address, names) : {}) };
  // The server may offer other models than the last time, and with them other classes.
  const isOffered = models.includes(settings.model ?? models[0]);
  if (!isOffered) for (const name of ["model", "classes", "against"]) delete settings[name];
  const isSame = record && JSON.stringify(settings) === JSON.stringify(record.settings);
  const values = { ...settings, ...(isSame ? record.results : {}) };
  if (record?.photo) values.input = await uploadPhoto(record.photo, record.name);
  else if (record?.text) values.input = record.text;
  shown[kind] = settings;
  isRestored[kind] = true;
  return names.map((name) => values[name] ?? UNCHANGED);
};
// Anyone can write an address: it may say what is set, and never what is shown.
const parseSettings = (address, names) => {
  const isSetting = ([name]) => names.includes(name) && name !== "input" && !isResult(name);
  const words = Object.fromEntries(Object.entries(address).filter(isSetting));
  const toNumber = (word) => (/^\d+$/.test(word) ? +word : word);
  for (const name of ["classes", "methods"]) if (name in words) words[name] = words[name].split(",").map(toNumber);
  for (const name of ["against", "count"]) if (name in words) words[name] = toNumber(words[name]);
  return words;
};
const uploadPhoto = async (photo, name) => {
  const form = new FormData();
  form.append("files", photo, name || "photo.png");
  const answer = await fetch("gradio_api/upload", { method: "POST", body: form }).catch(() => null);
  if (!answer?.ok) return UNCHANGED;
  const [path] = await answer.json();
  return { path, url: `${location.origin}${location.pathname}gradio_api/file=${path}`, orig_name: name, meta: { _type: "gradio.FileData" } };
};

// A tab has its address, so that Back leads to the tab before.
const listTabs = () => [...document.querySelectorAll(".kinds > .tab-wrapper [role=tablist] [role=tab]")];
let followsAddress = false;
const followAddress = () => {
  listTabs()[KINDS.indexOf(readAddress().tab ?? KINDS[0])]?.click();
  followsAddress = true;
};
const showTabInAddress = () => {
  const kind = KINDS[listTabs().findIndex((tab) => tab.getAttribute("aria-selected") === "true")];
  if (!followsAddress || !kind || kind === (readAddress().tab ?? KINDS[0])) return;
  writeAddress(kind, shown[kind] ?? {}, true);
};
addEventListener("popstate", followAddress);
window.whence = { remember, restore, followAddress };
