// The home page; a part of the module page.js, whose functions it uses.

function deviceCard(device) {
  const test = device.self_test, memory = `${(device.memory / 2 ** 30).toFixed(1)} GiB`;
  return element("li", { className: "el-card" }, element("h3", { textContent: device.name }),
    element("div", { textContent: `${device.kind.toUpperCase()}, ${device.compute_units} compute units, ${memory}` }),
    element("div", { className: "el-quiet", textContent: `${device.version}, driver ${device.driver}` }),
    test.passed ? element("div", {}, element("span", { className: "el-pass", textContent: "self-test passed" }),
      `: ${(test.bandwidth / 1e9).toFixed(0)} GB/s, ${(test.flops / 1e9).toFixed(0)} GFLOP/s, ${test.seconds.toFixed(1)} s`)
      : element("div", { className: "el-fail", textContent: `self-test FAILED: ${test.problem}` }),
    ...device.notes.map((note) => element("div", { className: "el-note", textContent: note })));
}

function loadText({ processors, memory, free, gpus }) {
  const gigabytes = (n) => (n / 1e9).toFixed(1);
  return [`Processors ${Math.round(100 * processors)} % busy, ${gigabytes(free)} of ${gigabytes(memory)} GB of memory free`,
    ...gpus.map((gpu) => `${gpu.name} ${Math.round(100 * gpu.used)} % busy, ${gigabytes(gpu.held)} of ${gigabytes(gpu.memory)} GB in use`)].join("; ");
}

function homeView(root, host) {
  let closed = false, shown = "";
  const now = element("section"), load = element("p", { className: "el-quiet" }), devices = element("ul", { className: "el-cards" });
  const cards = element("ul", { className: "el-cards" }), recent = element("section"), data = element("section");
  const retry = button("Test again", () => test(true));
  now.setAttribute("aria-label", "Training now");
  const what = element("p", { textContent: "Train neural networks within the memory, precision and data of a phone or a board." });
  root.replaceChildren(element("h1", { textContent: "edgelearn" }), what, now, section("Experiments", cards), recent,
    section("Devices", devices, load, element("div", { className: "el-tools" }, retry)), data);

  const test = attempt(root, async (again = false) => {
    retry.disabled = true;
    devices.replaceChildren(element("li", { className: "el-card", textContent: "Testing the devices …" }));
    try {
      devices.replaceChildren(...(await host.ask({ do: "devices", again })).devices.map(deviceCard));
    } catch (error) {
      devices.replaceChildren(element("li", { className: "el-card el-fail", textContent: error.message }));
    }
    retry.disabled = false;
  });

  const start = (card) => attempt(root, async () => {
    await host.ask({ do: "sample", title: card.title });
    await renew();
    now.scrollIntoView({ block: "nearest" });
  });

  function card(each) {
    const file = (path, text) => path && host.file ? element("a", { href: host.file(path), textContent: text }) : null;
    const begin = each.sample && button("Train the sample", start(each));
    if (begin) begin.setAttribute("aria-label", `Train the sample of ${each.title}`);
    const notebook = file(each.notebook, "Notebook"), guide = file(each.guide, "Manual");
    notebook?.setAttribute("aria-label", `Notebook of ${each.title}`);
    guide?.setAttribute("aria-label", `Manual of ${each.title}`);
    return element("li", { className: "el-card" }, element("h3", { textContent: each.title }), element("div", { textContent: each.shows }),
      element("div", { className: "el-quiet", textContent: `Takes ${each.takes}.` }),
      element("div", { className: "el-tools" }, notebook, guide, begin));
  }

  function job(each) {
    const stop = button("Stop", attempt(root, async () => { say(root, (await host.ask({ do: "stop", number: each.number })).said); await renew(); }));
    stop.setAttribute("aria-label", `Stop ${each.title}`);
    const starting = each.state === "running" && !each.run ? bar({ phase: "starting", done: 0, total: 0 }, each.title) : null;
    return element("li", {}, each.run ? link(host, { run: each.run }, each.title) : each.title, ` · ${each.state}${each.text ? `, ${each.text}` : ""} `,
      starting, ["waiting", "running"].includes(each.state) ? stop : null);
  }

  function drawNow(found) {
    const active = found.jobs.filter((each) => ["waiting", "running"].includes(each.state)), last = found.jobs.filter((each) => each.state === "failed").slice(0, 1);
    const runs = found.running.map((run) => element("div", { className: "el-card" }, element("h3", {}, link(host, { run: run.id }, title(run))),
      run.progress ? bar(run.progress, title(run)) : element("span", { textContent: "training" }),
      run.epochs > 0 && element("div", { className: "el-quiet", textContent: `epoch ${run.epochs}: ${run.result}` })));
    const nothing = !runs.length && !active.length;
    now.replaceChildren(element("h2", { textContent: "Training now" }),
      ...(nothing ? [element("p", { className: "el-quiet", textContent: "Nothing trains. Open an experiment's notebook, or train its sample here." })] : []), ...runs,
      element("ul", { className: "el-jobs" }, ...active.map(job), ...last.map(job)));
  }

  function draw(found) {
    load.textContent = loadText(found.load);
    drawNow(found);
    const text = JSON.stringify([found.cards, found.sources, found.recent]);
    if (text === shown) return; // or the keyboard's focus would be lost
    shown = text;
    cards.replaceChildren(...found.cards.map(card));
    recent.replaceChildren(element("h2", { textContent: "Recent runs" }), found.recent.length
      ? table(["run", "status", "started (UTC)", "result"], found.recent.map((run) => [link(host, { run: run.id }, title(run)), mark(run.status), moment(run.started), run.result]),
        "Recent runs", (at) => at > 2) : element("p", { textContent: "No runs yet." }), element("p", {}, link(host, { runs: true }, "All runs"), ` in ${found.store}`));
    data.replaceChildren(element("h2", { textContent: "Data and weights" }), table(["name", "for", "where, or how to get it"], found.sources.map((each) => [
      each.name, each.use, each.found || element("span", {}, element("b", { className: "el-fail", textContent: "missing: " }), each.remedy)]), "Data and weights"));
  }

  const renew = async () => draw(await host.ask({ do: "home" }));
  async function again() {
    if (closed || !root.isConnected) return;
    const focus = document.activeElement;
    if (!document.hidden && !now.contains(focus)) await renew();
    setTimeout(attempt(root, again), 1000);
  }
  const loading = attempt(root, renew)().then(() => { test(); setTimeout(attempt(root, again), 1000); });
  return { loading, close: () => { closed = true; } };
}

views.home = (root, host) => homeView(root, host);
