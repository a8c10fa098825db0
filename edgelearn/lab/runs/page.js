// Pages of runs: the table, a run, and runs side by side. The same code draws them on the server's pages, in notebooks (as a
// widget's front end), and in files that are exported; `host` says where it is:
//   ask(request)   answer to a request, see RunStore.answer; not there in a file, which has the view's data
//   go(view)       shows another view: {runs: true}, {run: ID}, {compare: [ID, …]}
//   links(view)    address of a view, "" where views have none
//   file(path)     address of a file in JupyterLab; not there elsewhere
//   jobs           true where trainings can be started
"use strict";

export const element = (tag, properties = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
};
export const button = (text, onclick, properties = {}) => element("button", { type: "button", textContent: text, onclick, ...properties });
const megabytes = (n) => (n / 1e6).toFixed(1);
const moment = (text) => (text ?? "").slice(0, 16).replace("T", " ");
const percent = (share) => (100 * share).toFixed(1) + " %";
export const duration = (s) => s < 60 ? `${Math.round(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min ${String(Math.round(s % 60)).padStart(2, "0")} s`
  : `${Math.floor(s / 3600)} h ${String(Math.round(s % 3600 / 60)).padStart(2, "0")} min`;
export const title = (run) => run.name || run.id;

export function table(header, rows, label, numeric = () => false) {
  const head = header.length ? [element("thead", {}, element("tr", {}, ...header.map((text, at) =>
    text ? element("th", { scope: "col", className: numeric(at) ? "el-number" : "", textContent: text }) : element("td"))))] : [];
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, at) => at === 0
    ? element("th", { scope: "row" }, cell instanceof Node ? cell : String(cell ?? ""))
    : element("td", { className: numeric(at) ? "el-number" : "" }, cell instanceof Node ? cell : String(cell ?? "")))));
  const made = element("table", { className: "el-table" }, ...head, element("tbody", {}, ...body));
  made.setAttribute("aria-label", label);
  const scroll = element("div", { className: "el-scroll", tabIndex: 0, role: "region" }, made);
  scroll.setAttribute("aria-label", label);
  return scroll;
}

export function section(text, ...children) {
  return element("section", {}, element("h2", { textContent: text }), ...children);
}

export function folded(text, ...children) {
  return element("details", {}, element("summary", { textContent: text }), ...children);
}

export function link(host, view, text) {
  const address = host.links(view);
  if (!address) return button(text, () => host.go(view), { className: "el-link" });
  return element("a", { href: address, textContent: text, onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    host.go(view);
  } });
}

export function bar(progress, label) {
  const left = progress.left === null || progress.left === undefined ? "" : `, ${duration(progress.left)} left`;
  const count = progress.total ? `: ${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")}${left}` : " …";
  const text = progress.phase + count;
  const made = element("progress", progress.total ? { max: progress.total, value: progress.done } : {}); // else it moves to and fro
  made.setAttribute("aria-label", `${label}: ${text}`);
  return element("span", { className: "el-progress" }, made, element("span", { textContent: text }));
}

function mark(status) {
  return element("span", { className: `el-status el-status-${status}`, textContent: status });
}

// A line at the bottom that says what was done, with a button to undo it; a screen reader reads it.
export function say(root, text, undo = null, wrong = false) {
  let line = root.querySelector(".el-said");
  if (!line) {
    line = element("div", { className: "el-said" });
    line.setAttribute("role", "status");
    root.append(line);
  }
  const away = button("Dismiss", () => line.replaceChildren(), { className: "el-link" });
  line.replaceChildren(element("div", { className: wrong ? "el-problem" : "el-done" }, element("span", { textContent: text }),
    undo && button("Undo", undo), away));
}

export const attempt = (root, action) => async (...given) => {
  try { return await action(...given); } catch (error) { say(root, error.message, null, true); }
};

function dialog(root, text, fields, action, submit = "Save") {
  const made = element("dialog", { className: "el-dialog" }), problem = element("p", { className: "el-fail" });
  problem.setAttribute("role", "alert");
  const form = element("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const after = await action();
      made.close();
      after?.(); // the keyboard's focus returns to what opened the dialog, or goes where this puts it
    } catch (error) { problem.textContent = error.message; }
  } }, element("h2", { textContent: text }), ...fields, problem, element("div", { className: "el-tools" },
    element("button", { type: "submit", textContent: submit }), button("Cancel", () => made.close())));
  made.setAttribute("aria-label", text);
  made.append(form);
  made.addEventListener("close", () => made.remove());
  made.addEventListener("keydown", (event) => event.stopPropagation()); // or JupyterLab takes the keys
  root.append(made);
  made.showModal();
}

const field = (label, control) => element("label", { className: "el-field" }, element("span", { textContent: label }), control);

function describe(root, host, run, done) {
  const name = element("input", { value: run.name }), tags = element("input", { value: run.tags.join(", ") });
  const note = element("textarea", { value: run.note, rows: 4 });
  dialog(root, `Describe ${run.id}`, [field("Name", name), field("Tags, by commas", tags), field("Note", note)], async () => {
    const given = { name: name.value, tags: tags.value.split(","), note: note.value };
    return done(await host.ask({ do: "annotate", id: run.id, ...given }));
  });
}

async function download(host, ids, kind) {
  const { name, type, data } = await host.ask({ do: "export", ids, kind });
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const address = URL.createObjectURL(new Blob([bytes], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

const KINDS = { html: "One HTML file", csv: "CSV", tex: "LaTeX", json: "JSON", svg: "Curves as SVG", pdf: "Curves as PDF" };

function exporter(root, host, ids) {
  const choice = element("select", { onchange: attempt(root, async () => {
    const kind = choice.value;
    choice.value = "";
    await download(host, ids(), kind);
  }) }, element("option", { value: "", textContent: "Export …" }),
  ...Object.entries(KINDS).map(([kind, text]) => element("option", { value: kind, textContent: text })));
  choice.setAttribute("aria-label", "Export as");
  return choice;
}

// -- the table of runs --------------------------------------------------------------------------------------------------------

const COLUMNS = [ // title, value to sort by, cell, is a number
  ["Run", (run) => title(run).toLowerCase(), null, false],
  ["Status", (run) => run.status, (run) => mark(run.status), false],
  ["Started (UTC)", (run) => run.started, (run) => moment(run.started), false],
  ["Epochs", (run) => run.epochs, (run) => run.epochs.toLocaleString("en"), true],
  ["Result", (run) => run.accuracy ?? -(run.loss ?? 1e300), (run) => run.result, true],
  ["Time", (run) => run.seconds ?? -1, (run) => run.seconds === null ? "–" : duration(run.seconds), true],
  ["Memory (MB)", (run) => run.memory ?? -1, (run) => run.memory === null ? "–" : megabytes(run.memory), true],
  ["On disk (MB)", (run) => run.bytes, (run) => megabytes(run.bytes), true],
  ["Device", (run) => run.device, (run) => run.device, false],
];
const PAGE = 100; // rows that are shown at once
const FIRST = 40; // runs that are read first, for a table at once
const TERM = /^([\w.]+)(<=|>=|=|<|>)(.+)$/;

// A word of the search: `lr=0.01` or `accuracy>0.9` compares a setting or an entry; another word is looked for everywhere.
function test(word) {
  const [, name, relation, wanted] = TERM.exec(word) ?? [];
  if (!name) return (run) => run.text.includes(word.toLowerCase());
  const number = Number(wanted);
  return (run) => {
    const key = name in run.settings ? name : Object.keys(run.settings).find((each) => each.endsWith("." + name));
    const value = run[name] ?? run.settings[key];
    if (value === undefined || value === null) return false;
    if (relation === "=") return Array.isArray(value) ? value.includes(wanted) : String(value) === wanted || (value !== "" && Number(value) === number);
    const left = Number(value);
    return { "<": left < number, ">": left > number, "<=": left <= number, ">=": left >= number }[relation];
  };
}

function known(run) {
  const settings = Object.entries(run.settings).map(([key, value]) => `${key}=${value}`);
  run.text = [run.id, run.name, run.note, run.kind, run.status, run.device, ...run.tags, ...settings].join("\n").toLowerCase();
  return run;
}

export function runsView(root, host) {
  let runs = [], shown = [], order = [2, true], trash = false, count = PAGE, closed = false;
  const ticked = new Set(), rows = new Map();
  const search = element("input", { type: "search", placeholder: "Search; or epochs=3, accuracy>0.9", oninput: () => { count = PAGE; draw(); } });
  search.setAttribute("aria-label", "Search runs");
  const choose = (label, options) => {
    const made = element("select", { onchange: () => { count = PAGE; draw(); } });
    made.setAttribute("aria-label", label);
    made.fill = (values) => {
      const before = made.value;
      made.replaceChildren(element("option", { value: "", textContent: options }), ...values.map((value) => element("option", { value, textContent: value })));
      made.value = values.includes(before) ? before : "";
    };
    made.fill([]);
    return made;
  };
  const status = choose("Status", "Every status"), kind = choose("Experiment", "Every experiment"), tag = choose("Tag", "Every tag");
  const found = element("span", { className: "el-quiet" });
  found.setAttribute("role", "status");
  const deleted = button("Deleted runs", attempt(root, async () => { trash = !trash; ticked.clear(); await load(); }));
  deleted.setAttribute("aria-pressed", "false");
  const every = element("input", { type: "checkbox", onchange: () => {
    shown.slice(0, count).forEach((run) => every.checked ? ticked.add(run.id) : ticked.delete(run.id));
    draw();
  } });
  every.setAttribute("aria-label", "Tick every run shown");
  const head = COLUMNS.map(([text, , , number], at) => element("th", { scope: "col", className: number ? "el-number" : "" },
    button(text, () => { order = [at, order[0] === at ? !order[1] : at > 1]; draw(); }, { className: "el-sort" })));
  const body = element("tbody"), more = button("", () => { count += 10 * PAGE; draw(); });
  const ids = () => shown.filter((run) => ticked.has(run.id)).map((run) => run.id);
  const compare = button("Compare", () => host.go({ compare: ids() }));
  const remove = button("Delete", attempt(root, async () => {
    const { done, problems } = await host.ask({ do: trash ? "restore" : "discard", ids: ids() });
    ticked.clear();
    await load();
    const text = `${done.length} run${done.length === 1 ? " is" : "s are"} ${trash ? "restored" : "deleted; they can be restored for a week"}.`;
    const undo = trash || !done.length ? null : attempt(root, async () => {
      await host.ask({ do: "restore", ids: done });
      await load();
      say(root, "Restored.");
    });
    say(root, [text, ...problems].join(" "), undo, problems.length > 0);
  }));
  const label = button("Tag …", () => {
    const tags = element("input");
    const chosen = runs.filter((run) => ticked.has(run.id));
    dialog(root, `Tag ${chosen.length === 1 ? "a run" : `${chosen.length} runs`}`, [field("Tags to add, by commas", tags)], async () => {
      for (const run of chosen) Object.assign(run, await host.ask({ do: "annotate", id: run.id, tags: [...run.tags, ...tags.value.split(",")] }));
      chosen.forEach((run) => { known(run); rows.delete(run.id); });
      refill();
      draw();
    }, "Add");
  });
  const go = host.jobs && button("Resume", attempt(root, async () => {
    for (const id of ids()) await host.ask({ do: "resume", id });
    host.go({ home: true });
  }));
  const out = exporter(root, host, ids);
  const grid = element("table", { className: "el-table el-runs" }, element("thead", {}, element("tr", {}, element("th", {}, every), ...head,
    element("th", { scope: "col", textContent: "Describe" }))), body);
  grid.setAttribute("aria-label", "Runs");
  const scroll = element("div", { className: "el-scroll", tabIndex: 0, role: "region" }, grid);
  scroll.setAttribute("aria-label", "Table of runs");
  root.replaceChildren(element("h1", { textContent: "Runs" }), element("div", { className: "el-tools" }, search, status, kind, tag, found),
    element("div", { className: "el-tools" }, ...[compare, label, go, remove, out, deleted].filter(Boolean)), scroll, more);

  function row(run) {
    const box = element("input", { type: "checkbox", onchange: () => { box.checked ? ticked.add(run.id) : ticked.delete(run.id); tools(); } });
    box.setAttribute("aria-label", `Tick ${title(run)}`);
    const name = trash ? element("span", { textContent: title(run) }) : link(host, { run: run.id }, title(run));
    const first = element("th", { scope: "row" }, name, run.name && element("div", { className: "el-quiet", textContent: run.id }),
      ...run.tags.map((text) => element("span", { className: "el-tag", textContent: text })),
      run.note && element("div", { className: "el-note", textContent: run.note }),
      run.problem && element("div", { className: "el-fail", textContent: run.problem }),
      run.progress && bar(run.progress, title(run)));
    const edit = button("Edit", () => describe(root, host, run, (notes) => {
      Object.assign(run, notes);
      known(run);
      rows.delete(run.id);
      refill();
      draw();
      return () => rows.get(run.id)?.querySelector(".el-edit").focus();
    }), { className: "el-link el-edit", disabled: trash });
    edit.setAttribute("aria-label", `Edit name, tags and note of ${title(run)}`);
    const made = element("tr", {}, element("td", {}, box), first, ...COLUMNS.slice(1).map(([, , cell, number]) => {
      const content = cell(run);
      return element("td", { className: number ? "el-number" : "" }, content instanceof Node ? content : String(content));
    }), element("td", {}, edit));
    made.box = box;
    return made;
  }

  function tools() {
    const number = ids().length;
    compare.disabled = number < 2 || trash;
    label.disabled = out.disabled = number < 1 || trash;
    remove.disabled = number < 1;
    if (go) go.disabled = number < 1 || trash || !shown.every((run) => !ticked.has(run.id) || ["interrupted", "failed"].includes(run.status));
    remove.textContent = trash ? "Restore" : "Delete";
    every.checked = number > 0 && number >= Math.min(count, shown.length);
    found.textContent = `${shown.length.toLocaleString("en")} of ${runs.length.toLocaleString("en")} ${trash ? "deleted runs" : "runs"}`
      + (number ? `, ${number} ticked` : "");
  }

  function draw() {
    const tests = search.value.trim().split(/\s+/).filter(Boolean).map(test);
    shown = runs.filter((run) => (!status.value || run.status === status.value) && (!kind.value || run.kind === kind.value)
      && (!tag.value || run.tags.includes(tag.value)) && tests.every((each) => each(run)));
    const value = COLUMNS[order[0]][1], sign = order[1] ? -1 : 1;
    shown = shown.map((run) => [value(run), run]).sort(([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0)).map(([, run]) => run);
    head.forEach((th, at) => at === order[0] ? th.setAttribute("aria-sort", order[1] ? "descending" : "ascending") : th.removeAttribute("aria-sort"));
    body.replaceChildren(...shown.slice(0, count).map((run) => {
      if (!rows.has(run.id)) rows.set(run.id, row(run));
      const made = rows.get(run.id);
      made.box.checked = ticked.has(run.id);
      return made;
    }));
    if (!shown.length) body.append(element("tr", {}, element("td", { colSpan: COLUMNS.length + 2, textContent: runs.length ? "No run is like this." : "No runs yet." })));
    more.hidden = shown.length <= count;
    more.textContent = `Show ${Math.min(10 * PAGE, shown.length - count)} more`;
    tools();
  }

  function refill() {
    const distinct = (values) => [...new Set(values)].sort();
    status.fill(distinct(runs.map((run) => run.status)));
    kind.fill(distinct(runs.map((run) => run.kind).filter(Boolean)));
    tag.fill(distinct(runs.flatMap((run) => run.tags)));
  }

  function take(answer) {
    const before = new Map(runs.map((run) => [run.id, run]));
    runs = answer.rows.map(known);
    for (const run of runs) { // what hasn't changed keeps its row, and with it the keyboard's focus
      const old = before.get(run.id);
      if (!old || JSON.stringify(old) !== JSON.stringify(run)) rows.delete(run.id);
    }
    refill();
    draw();
  }

  async function load() {
    deleted.setAttribute("aria-pressed", String(trash));
    rows.clear();
    if (trash) return take(await host.ask({ do: "discarded" }));
    const first = runs.length ? null : await host.ask({ do: "list", newest: FIRST });
    if (first) take(first);
    if (!first?.complete) take(await host.ask({ do: "list" }));
  }

  async function renew() { // while something trains
    if (closed || !root.isConnected) return;
    if (!trash && runs.some((run) => run.status === "running") && !document.hidden) take(await host.ask({ do: "list" }));
    setTimeout(attempt(root, renew), 2000);
  }

  const loading = attempt(root, load)();
  loading.then(() => setTimeout(attempt(root, renew), 2000));
  return { loading, close: () => { closed = true; } };
}

// -- curves -------------------------------------------------------------------------------------------------------------------

const LINES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((number) => `--el-series-${number}`);
const SOLID = 5; // runs before the first dashed one, as in figures.py
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];

// Charts of curves over epochs, one for each figure; `runs` are [label, curves]. The pointer, or the arrow keys, read values.
export function charts(runs) {
  const groups = {};
  for (const [label, curves] of runs) {
    for (const [name, [x, y]] of Object.entries(curves)) {
      const base = name.replace(/^val_/, ""), part = name.startsWith("val_") ? "test" : `val_${name}` in curves ? "train" : "";
      (groups[base] ??= []).push({ label: [label, part].filter(Boolean).join(", ") || name, x, y, run: runs.findIndex(([each]) => each === label), dotted: part === "train" });
    }
  }
  const first = ["loss", "accuracy"].filter((name) => groups[name]), others = Object.keys(groups).filter((name) => !first.includes(name));
  const still = others.filter((name) => unmoved(groups[name])), texts = still.map((name) => `${name} ${compact(groups[name][0].y[0])}`);
  const drawn = [...first, ...others.filter((name) => !still.includes(name))].map((name) => chart(name, groups[name]));
  const told = texts.length ? element("p", { className: "el-quiet", textContent: `The same in every epoch: ${texts.join(", ")}.` }) : null;
  return element("div", {}, element("div", { className: "el-charts" }, ...drawn), ...(told ? [told] : []));
}

// A figure that is the same, to a thousandth, in all epochs of all runs.
function unmoved(lines) {
  const values = lines.flatMap((line) => [...line.y]);
  let least = Infinity, most = -Infinity;
  for (const value of values) { least = Math.min(least, value); most = Math.max(most, value); }
  return values.length > lines.length && most - least <= 1e-3 * Math.abs(most);
}

const compact = (value) => Math.abs(value) >= 1e4
  ? new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 }).format(value) : String(+value.toPrecision(4));

// Round numbers between two, about `count` of them.
function round(low, high, count, least = 0) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999)), found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(+(at * step).toPrecision(12));
  return found;
}

function chart(name, lines) {
  const share = /accuracy|precision|recall|f1$/.test(name) && lines.every((line) => line.y.every((value) => value >= 0 && value <= 1));
  const write = (value) => share ? percent(value) : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
  const picture = element("canvas", { tabIndex: 0 }), readout = element("output", { className: "el-readout" });
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `${name} over epochs. ` + lines.map((line) => `${line.label}: ${write(line.y[0])} to ${write(line.y.at(-1))}`).join("; ")
    + ". Arrow keys read the values.");
  let low = Math.min(...lines.map((line) => line.x[0])), high = Math.max(...lines.map((line) => line.x.at(-1)));
  const ends = [low, high];
  let at = null, log = false, from = null;
  const toggle = element("label", {}, element("input", { type: "checkbox", onchange: (event) => { log = event.target.checked; draw(); } }), " log");
  const whole = button("Whole", () => { [low, high] = ends; draw(); }, { className: "el-link", hidden: true });
  const color = (line) => getComputedStyle(picture).getPropertyValue(LINES[line.run % LINES.length]) || "#888";
  const nearest = (line, x) => {
    let left = 0, right = line.x.length - 1;
    while (right - left > 1) { const middle = (left + right) >> 1; line.x[middle] <= x ? left = middle : right = middle; }
    return x - line.x[left] <= line.x[right] - x ? left : right;
  };
  const box = () => [54, 8, picture.clientWidth - 62, picture.clientHeight - 30]; // left, top, width, height
  const epoch = (event) => { const [left, , width] = box(); return low + (high - low) * Math.min(1, Math.max(0, (event.offsetX - left) / width)); };

  function draw() {
    if (!picture.clientWidth) return;
    const scale = devicePixelRatio || 1, style = getComputedStyle(picture), [left, top, width, height] = box();
    picture.width = picture.clientWidth * scale;
    picture.height = picture.clientHeight * scale;
    const pen = picture.getContext("2d");
    pen.scale(scale, scale);
    whole.hidden = low === ends[0] && high === ends[1];
    let least = Infinity, most = -Infinity;
    for (const line of lines) line.x.forEach((x, i) => { const y = line.y[i]; if (x >= low && x <= high && (!log || y > 0)) { least = Math.min(least, y); most = Math.max(most, y); } });
    if (least === Infinity) return;
    const turn = log ? Math.log10 : (y) => y, back = log ? (y) => 10 ** y : (y) => y;
    let [a, b] = [turn(least), turn(most)];
    if (a === b) { a -= Math.abs(a) / 10 || 1; b += Math.abs(b) / 10 || 1; }
    const px = (x) => left + (high === low ? .5 : (x - low) / (high - low)) * width, py = (y) => top + height - (turn(y) - a) / (b - a) * height;
    pen.font = "12px " + style.fontFamily;
    pen.lineWidth = 1;
    const marks = log ? [0, 1, 2, 3, 4].map((tick) => back(a + (b - a) * tick / 4)) : round(a, b, 4);
    for (const value of marks) {
      const y = py(value);
      pen.strokeStyle = style.getPropertyValue("--el-line");
      pen.beginPath(); pen.moveTo(left, y); pen.lineTo(left + width, y); pen.stroke();
      pen.fillStyle = style.getPropertyValue("--el-quiet");
      pen.textAlign = "right"; pen.textBaseline = "middle";
      pen.fillText(share ? `${+(100 * value).toPrecision(3)} %` : compact(log ? +value.toPrecision(3) : value), left - 5, y);
    }
    for (const e of high > low ? round(low, high, Math.min(6, width / 80), 1) : [low]) {
      pen.textAlign = px(e) > left + width - 8 ? "right" : "center"; pen.textBaseline = "top";
      pen.fillText(e.toLocaleString("en"), px(e), top + height + 6);
    }
    pen.save();
    pen.beginPath(); pen.rect(left - 3, top - 3, width + 6, height + 6); pen.clip();
    for (const line of lines) {
      pen.strokeStyle = pen.fillStyle = color(line);
      pen.lineWidth = line.dotted ? 1.2 : 2;
      pen.setLineDash(line.dotted ? [2, 3] : DASHES[Math.floor(line.run / SOLID) % DASHES.length]);
      pen.beginPath();
      line.x.forEach((x, i) => { if (!log || line.y[i] > 0) pen.lineTo(px(x), py(line.y[i])); });
      pen.stroke();
      if (line.x.length === 1) { pen.beginPath(); pen.arc(px(line.x[0]), py(line.y[0]), 3, 0, 7); pen.fill(); }
    }
    pen.setLineDash([]);
    if (at !== null) {
      pen.strokeStyle = style.getPropertyValue("--el-ink");
      pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(px(at), top); pen.lineTo(px(at), top + height); pen.stroke();
    }
    pen.restore();
    readout.textContent = at === null ? "" : `epoch ${Math.round(at)}: ` + lines.map((line) => `${line.label} ${write(line.y[nearest(line, at)])}`).join(" · ");
  }

  picture.onpointermove = (event) => { at = epoch(event); draw(); };
  picture.onpointerleave = () => { at = null; from = null; draw(); };
  picture.onpointerdown = (event) => { from = epoch(event); };
  picture.onpointerup = (event) => { // a stretch that was drawn over is shown alone
    const to = epoch(event);
    if (from !== null && Math.abs(to - from) > (high - low) / 50) [low, high] = [Math.min(from, to), Math.max(from, to)];
    from = null;
    draw();
  };
  picture.ondblclick = () => { [low, high] = ends; draw(); };
  picture.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    at = Math.min(high, Math.max(low, (at ?? low) + step * Math.max(1, Math.round((high - low) / 50))));
    draw();
  };
  new ResizeObserver(draw).observe(picture);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const key = element("ul", { className: "el-key" }, ...lines.map((line) => {
    const sample = element("i");
    sample.style.borderTop = `${line.dotted ? "2px dotted" : Math.floor(line.run / SOLID) % DASHES.length ? "3px dashed" : "3px solid"} var(${LINES[line.run % LINES.length]})`;
    return element("li", {}, sample, line.label);
  }));
  return element("figure", { className: "el-chart" }, element("figcaption", {}, element("b", { textContent: name }), toggle, whole), picture, readout, key);
}

// -- a run --------------------------------------------------------------------------------------------------------------------

export function runView(root, host, id, data = null) {
  let closed = false;
  root.replaceChildren(element("p", { textContent: "Loading …" }));

  function draw(run) {
    const reload = attempt(root, async () => draw((await host.ask({ do: "run", id })).run));
    const resumable = ["interrupted", "failed"].includes(run.status);
    const tools = !host.ask ? [] : [
      button("Describe", () => describe(root, host, run, (notes) => draw({ ...run, ...notes }))),
      host.jobs && run.status !== "damaged" && button("Run again …", () => again(root, host, run)),
      host.jobs && resumable && button("Resume", attempt(root, async () => { await host.ask({ do: "resume", id: run.id }); host.go({ home: true }); })),
      host.jobs && run.status === "running" && button("Stop", attempt(root, async () => say(root, (await host.ask({ do: "stop", id: run.id })).said))),
      exporter(root, host, () => [run.id]),
      run.again && button("Compare with the run before", () => host.go({ compare: [run.again.of, run.id] })),
      button("Delete", attempt(root, async () => {
        const { problems } = await host.ask({ do: "discard", ids: [run.id] });
        if (problems.length) throw new Error(problems[0]);
        host.go({ runs: true });
        say(root, `${title(run)} is deleted; it can be restored for a week.`, attempt(root, async () => {
          await host.ask({ do: "restore", ids: [run.id] });
          host.go({ run: run.id });
        }));
      }), { disabled: run.status === "running" }),
    ].filter(Boolean);
    const parts = [
      element("h1", { textContent: title(run) }),
      element("p", {}, mark(run.status), " ", element("span", { textContent: [run.result, run.name && run.id].filter(Boolean).join(" · ") }),
        ...run.tags.map((text) => element("span", { className: "el-tag", textContent: text }))),
      run.note && element("p", { className: "el-note", textContent: run.note }),
      run.error?.message && element("p", { className: "el-problem", textContent: `${run.error.type} ${run.error.message}` }),
      run.progress && bar(run.progress, title(run)),
      element("div", { className: "el-tools" }, ...tools),
      host.ask && !host.jobs && resumable && element("p", {}, "To continue it: ", element("code", { textContent: run.command })),
      Object.keys(run.curves).length > 0 && section("Curves", charts([["", run.curves]])),
      element("div", { className: "el-columns" },
        section("Results", table([], run.results, "Results")),
        section("Configuration", table([], run.settings, "Configuration")),
        section("Device, versions, data", table([], run.facts, "Device, versions, data"))),
      run.again && section("Run again", table(["setting", "before", "now"], run.again.changed, "What differs from the run before")),
      run.claims.length > 0 && section("Claims", table(["claim", "measured", ""], run.claims.map((claim) => [claim.claim, claim.measured,
        element("b", { className: claim.passed === false ? "el-fail" : claim.passed ? "el-pass" : "",
          textContent: claim.passed === false ? "failed" : claim.passed ? "passed" : "not measured" })]), "Claims")),
      run.plan.length > 0 && section("Plan", folded(`${run.plan.length} entries`, table([], run.plan, "Plan"))),
      section("Source", element("p", { textContent: run.changes ? "The checkout had changes that were not committed:" : "The checkout had no changes beside its commit." }),
        run.changes && folded("The difference", element("pre", { tabIndex: 0, textContent: run.changes }))),
      run.pictures.length > 0 && section("Pictures", ...run.pictures.map((each) => element("figure", {},
        element("img", { className: "el-figure", src: each.source, alt: each.alt }), element("figcaption", { textContent: each.name })))),
      run.logs.length > 0 && section("Logs", ...run.logs.map((each) => folded(each.name, element("pre", { tabIndex: 0, textContent: each.text })))),
      section("Files", table([], run.files.map(([name, bytes]) => [name, bytes < 1e5 ? `${(bytes / 1e3).toFixed(1)} kB` : megabytes(bytes) + " MB"]), "Files", (at) => at > 0)),
    ];
    const said = root.querySelector(".el-said");
    root.replaceChildren(...parts.filter(Boolean), ...(said ? [said] : []));
    if (run.status === "running" && host.ask) setTimeout(() => { if (!closed && root.isConnected && !root.querySelector("dialog")) reload(); }, 2000);
  }

  if (data) draw(data);
  const loading = data ? Promise.resolve() : attempt(root, async () => draw((await host.ask({ do: "run", id })).run))();
  return { loading, close: () => { closed = true; } };
}

// A form of the run's settings; what differs from them is named before it starts.
export function again(root, host, run) {
  const controls = Object.entries(run.config).map(([name, value]) => {
    const control = typeof value === "boolean" ? element("input", { type: "checkbox", checked: value })
      : element("input", { value: value === null ? "" : Array.isArray(value) ? value.join(", ") : String(value) });
    return [name, value, control, typeof value === "boolean" ? control.checked : control.value];
  });
  const differs = element("p", { className: "el-quiet" });
  differs.setAttribute("role", "status");
  const changed = () => controls.filter(([, , control, before]) => (control.type === "checkbox" ? control.checked : control.value) !== before)
    .map(([name, value, control]) => [name, value, control.type === "checkbox" ? control.checked : control.value]);
  const tell = () => {
    const found = changed();
    differs.textContent = found.length ? "Differs: " + found.map(([name, before, now]) => `${name} ${before} → ${now}`).join(", ") : "Nothing differs: the same training again.";
  };
  controls.forEach(([, , control]) => { control.oninput = tell; });
  tell();
  dialog(root, `Run ${title(run)} again`, [element("div", { className: "el-fields" }, ...controls.map(([name, , control]) => field(name, control))), differs], async () => {
    await host.ask({ do: "again", id: run.id, changes: Object.fromEntries(changed().map(([name, , now]) => [name, now])) });
    host.go({ home: true });
  }, "Start");
}

// -- a comparison -------------------------------------------------------------------------------------------------------------

export function comparisonView(root, host, ids, data = null) {
  root.replaceChildren(element("p", { textContent: "Loading …" }));

  function draw(found) {
    const named = found.labels.map((label, at) => `${at + 1}: ${label}`);
    const [, settings, plan, facts, results] = found.tables;
    const shown = ({ rows }, what) => rows.length ? table(["", ...named], rows, what) : element("p", { textContent: "Nothing differs." });
    const runs = element("ol", {}, ...found.ids.map((id, at) => element("li", {}, host.ask ? link(host, { run: id }, id) : id,
      found.labels[at] === id ? "" : ` · ${found.labels[at]}`)));
    root.replaceChildren(element("h1", { textContent: `Comparison of ${found.ids.length} runs` }), runs,
      element("div", { className: "el-tools" }, ...(host.ask ? [exporter(root, host, () => found.ids)] : [])),
      section("Settings that differ", shown(settings, "Settings that differ")),
      section("What differs in the plan", shown(plan, "What differs in the plan")),
      section("What differs in versions, device and data", shown(facts, "What differs in versions, device and data")),
      section("Curves", charts(found.curves.map((curves, at) => [named[at], curves]))),
      section("Results", shown(results, "Results")),
      folded(`${found.same.length} settings are the same`, table([], found.same, "Settings that are the same")));
  }

  if (data) draw(data);
  const loading = data ? Promise.resolve() : attempt(root, async () => draw((await host.ask({ do: "compare", ids })).compare))();
  return { loading, close: () => {} };
}

// -- where it is drawn --------------------------------------------------------------------------------------------------------

export const views = { // by the key of a view
  runs: (root, host) => runsView(root, host),
  run: (root, host, id) => runView(root, host, id),
  compare: (root, host, ids) => comparisonView(root, host, ids),
};

export function show(root, host, view) {
  root.view?.close();
  const [[name, argument]] = Object.entries(view);
  root.view = views[name](root, host, argument);
  return root.view;
}

// The address of a file in JupyterLab; pages of the manual are shown rendered.
function inLab(lab, path) {
  return `${lab}/tree/${path.split("/").map(encodeURIComponent).join("/")}${path.endsWith(".md") ? "?factory=Markdown%20Preview" : ""}`;
}

// The front end of a widget: requests are messages, views change in place.
function render({ model, el }) {
  const waiting = new Map();
  let number = 0;
  const root = element("div", { className: "el-page el-widget" });
  el.append(root);
  const heard = (message) => {
    const [resolve, reject] = waiting.get(message.number) ?? [];
    if (!resolve) return;
    waiting.delete(message.number);
    message.error ? reject(new Error(message.error)) : resolve(message.answer);
  };
  model.on("msg:custom", heard);
  const home = model.get("view"), config = document.getElementById("jupyter-config-data");
  const lab = config && JSON.parse(config.textContent).baseUrl + "lab";
  const host = {
    file: lab && ((path) => inLab(lab, path)),
    jobs: model.get("jobs"),
    links: () => "",
    ask: (request) => new Promise((resolve, reject) => {
      waiting.set(++number, [resolve, reject]);
      model.send({ number, request });
    }),
    go: (view) => {
      show(body, host, view);
      back.hidden = JSON.stringify(view) === JSON.stringify(home);
    },
  };
  const back = button("← Back", () => host.go(home), { className: "el-link", hidden: true }), body = element("div");
  root.append(back, body);
  root.addEventListener("keydown", (event) => { if (event.target.matches("input, select, textarea, button")) event.stopPropagation(); });
  show(body, host, home);
  return () => { body.view?.close(); model.off("msg:custom", heard); };
}

export default { render };

// A page of the server, or a file.
async function boot(data) {
  const root = document.getElementById("edgelearn");
  if (!data.server) {
    const host = { links: () => "", go: () => {} };
    root.append(element("main"));
    return data.run ? runView(root.firstChild, host, data.run.id, data.run) : comparisonView(root.firstChild, host, [], data.compare);
  }
  const { base } = data.server;
  const host = {
    jobs: true,
    file: (path) => inLab(data.server.lab, path),
    links: (view) => base + (view.home ? "" : view.run ? `/runs/${encodeURIComponent(view.run)}` : view.compare ? `/compare?${view.compare.map((id) => `id=${encodeURIComponent(id)}`).join("&")}` : "/runs"),
    ask: async (request) => {
      const token = document.cookie.match(/\b_xsrf=([^;]*)/)?.[1] ?? "";
      const answered = await fetch(`${base}/api`, { method: "POST", body: JSON.stringify(request),
        headers: { "Content-Type": "application/json", "X-XSRFToken": token } });
      const answer = await answered.json().catch(() => ({ message: `The server answered ${answered.status}. Load this page again.` }));
      if (!answered.ok) throw new Error(answer.message);
      return answer;
    },
    go: (view) => {
      history.pushState(null, "", host.links(view));
      show(main, host, view);
      scrollTo(0, 0);
    },
  };
  const main = element("main");
  root.append(element("nav", { className: "el-nav" }, link(host, { home: true }, "edgelearn"), link(host, { runs: true }, "Runs"),
    element("a", { href: data.server.lab, textContent: "JupyterLab" }), element("a", { href: data.server.manual, textContent: "Manual" })), main);
  const here = () => {
    const path = location.pathname.slice(location.pathname.indexOf(base) + base.length).split("/").filter(Boolean).map(decodeURIComponent);
    return path[0] === "runs" ? (path[1] ? { run: path[1] } : { runs: true }) : path[0] === "compare" ? { compare: new URLSearchParams(location.search).getAll("id") } : { home: true };
  };
  addEventListener("popstate", () => show(main, host, here()));
  return show(main, host, here());
}

queueMicrotask(() => { // after whatever else this module has
  const data = document.getElementById("edgelearn-data");
  if (data) boot(JSON.parse(data.textContent));
});
