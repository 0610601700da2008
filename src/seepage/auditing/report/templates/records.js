// The table of records: sorts and searches all of them, but only draws those in sight.
(() => {
  "use strict";
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("records-data").textContent);
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

  find("explorer").hidden = false;
  label();
  sort();
  filter();
})();
