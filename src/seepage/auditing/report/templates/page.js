// What a reader moves: the noise and the group of the first screen, folds, and the table of records,
// which sorts and searches all of them but only draws those in sight. The address has it all.
(() => {
  "use strict";
  const find = (id) => document.getElementById(id);
  const page = JSON.parse(find("page-data").textContent);
  const view = new URLSearchParams();
  let remembered = "";

  function remember(name, value) {
    if (value === "") view.delete(name);
    else view.set(name, value);
    if (view.toString() === remembered) return;
    remembered = view.toString();
    // A frame without an address of its own, as in a notebook, has nothing to remember it in.
    try {
      history.replaceState(null, "", `#${remembered}`);
    } catch { /* nothing is lost but the link */ }
  }

  // The first screen: numbers and counts were made beforehand, one set for each noise.
  const screen = page.screen;
  const grouped = (count) => count.toLocaleString("en-GB");

  function showCard(card, place) {
    const box = document.querySelector(`[data-card="${place}"]`);
    box.className = `card ${card.tone}`;
    box.querySelector(".what").textContent = card.name;
    box.querySelector(".baseline").textContent = card.baseline;
    box.querySelector(".value strong").textContent = card.value;
    box.querySelector(".meaning").textContent = card.meaning;
    const judged = box.querySelector(".judged");
    if (judged) judged.textContent = card.judged;
    box.querySelector(".beside").replaceChildren(...card.beside.map((text) => {
      const line = document.createElement("p");
      line.textContent = text;
      return line;
    }));
  }

  function showBars(counts, everyone, alternative) {
    const bars = find("bars");
    const [top, tall] = [Number(bars.dataset.top), Number(bars.dataset.tall)];
    const most = Math.log1p(Math.max(1, ...(everyone ?? counts)));
    const put = (box, count) => {
      const high = (tall * Math.log1p(count)) / most;
      box.setAttribute("y", top + tall - high);
      box.setAttribute("height", high);
      return high;
    };
    bars.querySelectorAll(".bar").forEach((bar, k) => {
      const high = put(bar.querySelector(".own"), counts[k]);
      put(bar.querySelector(".all"), everyone ? everyone[k] : 0);
      const text = bar.querySelector("text");
      text.textContent = counts[k] ? grouped(counts[k]) : "";
      text.setAttribute("y", top + tall - high - 4);
      const beside = everyone ? ` of ${grouped(everyone[k])}` : "";
      bar.querySelector("title").textContent = `${screen.bars[k]}: ${grouped(counts[k])}${beside}`;
    });
    const over = [...bars.querySelectorAll(".bar")].reduce(
      (sum, bar, k) => sum + (bar.classList.contains("over") ? counts[k] : 0), 0);
    bars.setAttribute("aria-label", `${alternative}: ${grouped(over)} above the limit.`);
  }

  function turn() {
    const [noise, group] = [find("noise"), find("group")];
    const stop = screen.stops[Number(noise.value)];
    const own = Number(noise.value) === screen.own;
    const chosen = group && group.value !== "" ? Number(group.value) : null;
    stop.cards.forEach(showCard);
    const counts = chosen === null ? stop.counts : stop.groups[chosen];
    const who = chosen === null ? "" : `, ${group.selectedOptions[0].textContent}`;
    showBars(counts, chosen === null ? null : stop.counts, `Histogram with noise ${stop.sigma}${who}`);
    find("sigma").textContent = `${stop.sigma}, ${own ? "" : "not "}this release`;
    find("eta").textContent = stop.eta;
    find("back").disabled = own;
    find("first").classList.toggle("tried", !own);
    const said = stop.cards.map((card) => `${card.name} ${card.value}`).join(", ");
    noise.setAttribute("aria-valuetext", `${stop.sigma}: ${said}`);
  }

  function turned() {
    const noise = Number(find("noise").value);
    remember("noise", noise === screen.own ? "" : screen.stops[noise].sigma);
    remember("group", find("group")?.value ?? "");
    turn();
  }

  function read() {
    // "#records" names a part of the page, "#noise=0.1&open=records" a state of it.
    const address = decodeURIComponent(location.hash.slice(1));
    const part = address && !address.includes("=") ? find(address)?.closest("details") : null;
    if (part) part.open = true;
    for (const name of [...view.keys()]) view.delete(name);
    if (address.includes("=")) {
      for (const [name, value] of new URLSearchParams(location.hash.slice(1))) view.set(name, value);
    }
    remembered = view.toString();
    for (const name of (view.get("open") ?? "").split(",").filter(Boolean)) {
      const fold = find(name);
      if (fold?.matches("details.fold")) fold.open = true;
    }
    if (screen.stops.length) {
      const stop = screen.stops.findIndex((one) => one.sigma === view.get("noise"));
      find("noise").value = stop < 0 ? screen.own : stop;
      const group = find("group");
      if (group) group.value = view.get("group") ?? "";
      if (group && group.selectedIndex < 0) group.value = "";
      turn();
    }
  }

  const folds = [...document.querySelectorAll("details.fold")];
  for (const fold of folds) {
    fold.addEventListener("toggle", () => {
      remember("open", folds.filter((one) => one.open).map((one) => one.id).join(","));
      if (fold.id === "every" && fold.open) draw();
    });
  }
  if (screen.stops.length) {
    for (const control of document.querySelectorAll(".turn, .pick")) control.hidden = false;
    find("noise").addEventListener("input", turned);
    find("group")?.addEventListener("change", turned);
    find("back").addEventListener("click", () => {
      find("noise").value = screen.own;
      turned();
    });
  }

  // The table of records.
  const data = page.records;
  const decode = (text, Numbers) => {
    const packed = atob(text);
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
    return new Numbers(bytes.buffer);
  };
  const rows = decode(data.rows, Float64Array);
  const columns = [rows, ...data.numbers.map((text) => decode(text, Float32Array))];
  const eta = columns[1];
  const limit = data.limit * (1 + 1e-6);
  const ROW_HEIGHT = 34; // the height the style sheet gives a row
  const MARGIN = 10; // rows drawn beyond the edges, so that scrolling shows no gaps

  const viewport = find("viewport");
  const body = find("body");
  const search = find("search");
  const onlyOver = find("only-over");
  const heads = [];
  let sorted = Uint32Array.from(rows, (_, i) => i);
  let shown = sorted;
  let by = 1;
  let descending = true;
  let complaint = "";

  const superscript = (text) => text.replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  const number = (value) => {
    if (Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    if (size === 0 || (size >= 1e-3 && size < 1e6)) {
      const rounded = Number(value.toPrecision(3));
      return size < 1000 ? String(rounded) : rounded.toLocaleString("en-GB");
    }
    const [mantissa, power] = value.toExponential(2).split("e");
    return `${Number(mantissa)} × 10${superscript(power.replace("+", ""))}`;
  };

  function sort() {
    const values = columns[by];
    const sign = descending ? -1 : 1;
    // Equal numbers (and two infinities) keep the order of the table.
    sorted.sort((a, b) => sign * (values[a] - values[b]) || a - b);
  }

  function understand(text) {
    const wanted = [];
    const limits = [];
    complaint = "";
    for (const word of text.replace(/([<>]=?|≥|≤)\s+/g, "$1").split(/[\s,;]+/).filter(Boolean)) {
      const compared = /^([<>]=?|≥|≤)(\d*\.?\d+(?:e[-+]?\d+)?)$/i.exec(word);
      const range = /^(\d+)(?:[-–](\d+))?$/.exec(word);
      if (compared) limits.push([compared[1][0], Number(compared[2])]);
      else if (range) wanted.push([Number(range[1]), Number(range[2] ?? range[1])]);
      else complaint = `“${word.slice(0, 30)}” is neither a row, a range nor a leakage. `;
    }
    const above = (value) => value > limit;
    return (i) =>
      (!wanted.length || wanted.some(([from, to]) => rows[i] >= from && rows[i] <= to)) &&
      limits.every(([sign, bar]) => (sign === ">" || sign === "≥" ? eta[i] >= bar : eta[i] <= bar)) &&
      (!onlyOver?.checked || above(eta[i]));
  }

  function filter() {
    remember("find", search.value);
    remember("over", onlyOver?.checked ? "1" : "");
    shown = sorted.filter(understand(search.value));
    search.setAttribute("aria-invalid", complaint ? "true" : "false");
    const order = descending ? "largest first" : "smallest first";
    find("found").textContent =
      `${complaint}${shown.length.toLocaleString("en-GB")} of ${data.count.toLocaleString("en-GB")} ` +
      `${data.many}, sorted by ${data.columns[by].label}, ${order}.`;
    find("table").setAttribute("aria-rowcount", String(shown.length + 1));
    viewport.scrollTop = 0;
    draw();
  }

  function space(count) {
    const row = document.createElement("tr");
    row.className = "space";
    row.setAttribute("aria-hidden", "true");
    row.style.height = `${count * ROW_HEIGHT}px`;
    return row;
  }

  function line(place) {
    const i = shown[place];
    const row = document.createElement("tr");
    row.setAttribute("aria-rowindex", String(place + 2));
    if (place % 2) row.className = "odd";
    columns.forEach((values, column) => {
      const cell = document.createElement(column ? "td" : "th");
      if (!column) cell.scope = "row";
      const over = column === 1 && values[i] > limit;
      if (over) cell.className = "over";
      cell.textContent = column ? (over ? "▲ " : "") + number(values[i]) : String(values[i]);
      row.append(cell);
    });
    return row;
  }

  function draw() {
    const first = Math.max(0, Math.floor(viewport.scrollTop / ROW_HEIGHT) - MARGIN);
    const seen = Math.ceil(viewport.clientHeight / ROW_HEIGHT) + 2 * MARGIN;
    const last = Math.min(shown.length, first + seen);
    const lines = [space(first)];
    for (let place = first; place < last; place += 1) lines.push(line(place));
    lines.push(space(shown.length - last));
    body.replaceChildren(...lines);
  }

  function choose(column) {
    descending = column === by ? !descending : data.columns[column].descending;
    by = column;
    remember("sort", by === 1 && descending ? "" : `${descending ? "-" : ""}${by}`);
    label();
    sort();
    filter();
  }

  // What the address asks of the table
  function recall() {
    search.value = view.get("find") ?? "";
    if (onlyOver) onlyOver.checked = view.get("over") === "1";
    const asked = /^(-?)(\d+)$/.exec(view.get("sort") ?? "-1");
    const known = asked && Number(asked[2]) < columns.length;
    [by, descending] = known ? [Number(asked[2]), asked[1] === "-"] : [1, true];
    label();
    sort();
    filter();
  }

  function label() {
    heads.forEach((head, column) => {
      if (column === by) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  data.columns.forEach((column, place) => {
    const head = document.createElement("th");
    head.scope = "col";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.label;
    button.title = column.title;
    button.addEventListener("click", () => choose(place));
    head.append(button);
    heads.push(head);
    find("heads").append(head);
  });

  let waiting = false;
  viewport.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }, { passive: true });
  search.addEventListener("input", filter);
  onlyOver?.addEventListener("change", filter);
  window.addEventListener("resize", draw);

  window.addEventListener("hashchange", () => {
    read();
    recall();
  });

  find("explorer").hidden = false;
  read();
  recall();
})();
