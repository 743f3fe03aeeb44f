// Let a reader choose a generated word: the text that it came from gets its colours.
(root => {
  if (!root || root.dataset.ready) return;
  root.dataset.ready = "yes";
  const rows = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const words = new Map();
  for (const word of root.querySelectorAll("[data-row]")) words.set(Number(word.dataset.row), word);
  const pieces = [...root.querySelectorAll("[data-column]")];
  const status = root.querySelector(".status");
  let chosen = 0, held = false;

  const nameShade = level => `w${level < 0 ? "n" : "p"}${Math.abs(level)}`;

  function write(parent, tag, text, kind) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    parent.append(element, " ");
    return element;
  }

  function choose(number) {
    if (!rows[number] || !words.has(number)) return;
    const before = words.get(chosen), word = words.get(number), row = rows[number];
    before.tabIndex = -1;
    before.setAttribute("aria-pressed", "false");
    word.tabIndex = 0;
    word.setAttribute("aria-pressed", "true");
    chosen = number;
    const cells = new Map(row.cells.map(([column, ...cell]) => [column, cell]));
    for (const piece of pieces) {
      const [level, score] = cells.get(Number(piece.dataset.column)) ?? [0, ""];
      piece.classList.remove(...[...piece.classList].filter(name => /^w[np]\d+$/.test(name)));
      if (level) piece.classList.add(nameShade(level));
      piece.title = score && `score ${score}`;
    }
    status.textContent = "";
    write(status, "b", row.name).dir = "auto";
    if (row.percent) write(status, "span", row.percent, "percent");
    write(status, "span", row.top.length ? "from" : "from nothing above 0", "note");
    for (const [name, share, level] of row.top) {
      const source = write(status, "span", `${name} `, `source ${nameShade(level)}`);
      source.dir = "auto";
      write(source, "small", share);
    }
  }

  for (const [number, word] of words) {
    word.addEventListener("pointerenter", event => {
      if (!held && event.pointerType === "mouse") choose(number);
    });
    word.addEventListener("focus", () => { if (number !== chosen) choose(number); });
    word.addEventListener("click", () => {
      held = !(held && number === chosen);
      choose(number);
    });
    word.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) words.get(number + step)?.focus();
      else if (event.key === "Home") words.get(0)?.focus();
      else if (event.key === "End") words.get(rows.length - 1)?.focus();
      else if (event.key === "Enter" || event.key === " ") { held = !held; choose(number); }
      else if (event.key === "Escape") held = false;
      else return;
      event.preventDefault();
    });
  }
  choose(0);
})
