// Front end of LiveChart: curves by Plotly, whose code the widget `library` carries. It is loaded once for a page.

function plotly(model) {
  globalThis.edgelearnPlotly ??= (async () => {
    const carrier = await model.widget_manager.get_model(model.get("library").replace("IPY_MODEL_", ""));
    const packed = new Blob([carrier.get("code")]).stream();
    const code = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).text();
    const module = { exports: {} };
    new Function("module", "exports", "define", code)(module, module.exports, undefined); // not by a page's require.js
    return module.exports;
  })();
  return globalThis.edgelearnPlotly;
}

const floats = (view) => new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));

// Exponential moving average, without the bias towards its first value.
function smoothed(values, weight) {
  let sum = 0, mass = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

// The state of a LiveTraining in `head`, its tables in `foot`; returns what ends that.
function around(model, head, foot) {
  const add = (parent, tag) => parent.appendChild(document.createElement(tag));
  const status = add(head, "div"), bar = add(head, "progress");
  bar.setAttribute("aria-label", "Progress");
  const shown = {
    status: (text) => (status.textContent = text),
    share: (share) => (bar.value = share),
    outcome: (outcome) => (bar.className = outcome),
    tables: (tables) => tables.forEach((html, at) => {
      const table = foot.children[at] ?? add(foot, "div");
      if (table.said !== html) table.innerHTML = table.said = html;
    }),
  };
  const stops = Object.entries(shown).map(([trait, show]) => {
    const changed = () => show(model.get(trait));
    changed();
    model.on(`change:${trait}`, changed);
    return () => model.off(`change:${trait}`, changed);
  });
  return () => stops.forEach((stop) => stop());
}

const NARROW = 640, HEIGHT = 300, MARKED = 20, HIDDEN_MS = 500;
const WHOLE_MS = 60000, POINTED_MS = 10000; // from one whole drawing to the next; while the pointer is in the chart
const CLIPPED_MS = 5000; // at most, until the y axis follows points outside of it
const SETTLED_MS = 3000; // after the last change
const AHEAD = 1.5; // times the last epoch that the axis shows while points are added
const MARKS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "triangle-right", "star"];

function render({ model, el }) {
  const add = (parent, tag, more) => parent.appendChild(Object.assign(document.createElement(tag), more));
  const ofTraining = model.get("status") !== undefined, head = ofTraining && add(el, "div", {});
  const bar = add(el, "div", { className: "el-controls" }), plot = add(el, "div", { className: "el-plot", tabIndex: 0 });
  const texts = ofTraining ? around(model, head, add(el, "div", { className: "el-beside" })) : () => {};
  const labelled = (text, more) => {
    const label = add(bar, "label", {});
    const control = more.type === "range" ? (label.append(text), add(label, "input", more)) : add(label, "input", more);
    if (more.type !== "range") label.append(text);
    return control;
  };
  const log = labelled("Logarithmic loss", { type: "checkbox" });
  const smooth = labelled("Smoothing", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  const said = add(smooth.parentNode, "output", { textContent: "0" });
  add(bar, "span", { className: "el-quiet", textContent: "Drag to zoom, double-click or Home to show all" });
  plot.setAttribute("role", "group");

  let Plotly, wanted = 0, gone = false, ranges = {}, revision = 0; // ranges: of axes, by keys
  let drawn = null, moving = false, settle = 0, end = 0; // drawn: the last whole drawing; end: of the x axes

  const layout = (panels, narrow, style) => {
    const of = (name) => style.getPropertyValue(name).trim(), ink = of("--el-ink"), line = of("--el-line");
    const axis = { gridcolor: line, linecolor: of("--el-quiet"), zeroline: false, color: ink };
    const rows = narrow ? panels.length : 1, columns = narrow ? 1 : panels.length, gap = 0.1;
    const all = {
      font: { family: style.fontFamily, size: 13, color: ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      height: rows * HEIGHT + 60, margin: { l: 60, r: 12, t: 28, b: 80, autoexpand: false }, hovermode: "x unified", uirevision: revision,
      hoverlabel: { bgcolor: of("--el-panel"), bordercolor: line, font: { color: ink } },
      legend: { orientation: "h", x: 0, y: -0.19 / rows, yanchor: "top", font: { size: 13 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: of("--el-quiet"), activecolor: ink }, annotations: [],
    };
    panels.forEach((panel, at) => {
      const id = at ? at + 1 : "", column = narrow ? 0 : at, row = narrow ? at : 0;
      const wide = (1 - gap * (columns - 1)) / columns, high = (1 - 0.28 * (rows - 1)) / rows;
      const x = [column * (wide + gap), column * (wide + gap) + wide];
      const y = [1 - row * (high + 0.28) - high, 1 - row * (high + 0.28)];
      all[`xaxis${id}`] = { ...axis, domain: x, anchor: `y${id}`, rangemode: "tozero", title: { text: "Epoch", standoff: 6 } };
      if (ranges[`xaxis${id}`]) all[`xaxis${id}`].range = ranges[`xaxis${id}`];
      else if (moving) all[`xaxis${id}`].range = [0, end];
      all[`yaxis${id}`] = {
        ...axis, domain: y, anchor: `x${id}`, type: panel.log && log.checked ? "log" : "linear", title: { text: panel.label },
      };
      all.annotations.push({
        text: panel.title, x: x[0], y: y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom",
        showarrow: false, font: { size: 15, color: ink },
      });
    });
    return all;
  };

  const traces = (series, style) => {
    const seen = new Set(), found = [];
    for (const each of series) {
      const x = floats(each.x), y = floats(each.y), id = each.panel ? each.panel + 1 : "", steps = each.kind === "steps";
      const color = style.getPropertyValue(`--el-series-${each.color % MARKS.length}`).trim(), weight = +smooth.value;
      const common = {
        x, name: each.name, legendgroup: each.name, xaxis: `x${id}`, yaxis: `y${id}`, type: "scatter",
        hovertemplate: `%{y:.4g}<extra>${each.name}</extra>`,
      };
      const mode = steps || x.length > MARKED ? "lines" : "lines+markers";
      const line = { color, width: steps ? 1 : 2, dash: each.dash }, marker = { symbol: MARKS[each.color % MARKS.length], size: 6 };
      const showlegend = !seen.has(each.name);
      seen.add(each.name);
      if (!weight) found.push({ ...common, y, mode, line, marker, showlegend, opacity: steps ? 0.5 : 1 });
      else {
        found.push({ ...common, y, mode: "lines", line: { ...line, width: 1 }, opacity: 0.25, showlegend: false, hoverinfo: "skip" });
        found.push({ ...common, y: smoothed(y, weight), mode, line, marker, showlegend });
      }
    }
    return found;
  };

  // Plotly draws axes, legend and hover anew whenever a point is added, which takes it fifty times as long as the lines
  // do. So lines alone are drawn while they stay within the axes, and everything each WHOLE_MS and once they rest.
  const extend = (data, key) => {
    if (!drawn || drawn.key !== key || data.length !== drawn.data.length) return false;
    const age = Date.now() - drawn.at;
    if (age > (plot.matches(":hover") ? POINTED_MS : WHOLE_MS)) return false;
    const paths = [];
    for (const [at, trace] of data.entries()) {
      const before = drawn.data[at];
      if (before.name !== trace.name || before.mode !== trace.mode || before.yaxis !== trace.yaxis) return false;
      if (trace.mode !== "lines") {
        if (before.x.length !== trace.x.length) return false; // a new mark
        continue;
      }
      const full = plot._fullLayout, x = full[trace.xaxis.replace("x", "xaxis")], y = full[trace.yaxis.replace("y", "yaxis")];
      const path = plot.querySelector(`.trace${plot._fullData[at].uid} path.js-line`);
      if (!path) return false;
      const whole = y.autorange && x.range[1] === end; // nobody has zoomed
      let text = "";
      for (let i = 0; i < trace.x.length; i++) {
        const px = x.c2p(trace.x[i]), py = y.c2p(trace.y[i]);
        if (!Number.isFinite(px) || !Number.isFinite(py)) return false;
        if (whole && (px > x._length || (age > CLIPPED_MS && (py < 0 || py > y._length)))) return false;
        text += `${i ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`;
      }
      paths.push([path, text]);
    }
    for (const [path, text] of paths) path.setAttribute("d", text);
    plot.dispatchEvent(new CustomEvent("el-drawn"));
    return true;
  };

  const draw = async () => {
    wanted = 0;
    Plotly ??= await plotly(model);
    if (gone || document.hidden || !plot.isConnected) return; // nobody sees it
    bar.hidden = plot.hidden = !model.get("series").length;
    if (plot.hidden) return;
    if (!plot.clientWidth) return void setTimeout(ask, HIDDEN_MS); // as while JupyterLab changes its theme
    const style = getComputedStyle(plot), panels = model.get("panels"), narrow = plot.clientWidth < NARROW;
    const data = traces(model.get("series"), style);
    const key = JSON.stringify([
      panels, narrow, plot.clientWidth, log.checked, smooth.value, ranges, revision, moving, style.color,
    ]);
    plot.setAttribute("aria-label", model.get("alt"));
    if (extend(data, key)) return;
    const last = Math.max(0, ...data.map((trace) => trace.x.at(-1) ?? 0));
    if (last > end || !moving) end = AHEAD * last;
    drawn = { key, data, at: Date.now() };
    await Plotly.react(plot, data, layout(panels, narrow, style), {
      displaylogo: false, displayModeBar: true, modeBarButtons: [[
        "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d",
        {
          name: "Save as SVG", icon: Plotly.Icons.camera,
          click: () => Plotly.downloadImage(plot, { format: "svg", filename: "curves" }),
        },
      ]],
    });
    plot.dispatchEvent(new CustomEvent("el-drawn"));
  };
  const ask = () => {
    wanted ||= requestAnimationFrame(draw);
  };

  log.onchange = ask;
  smooth.oninput = () => {
    said.textContent = smooth.value;
    smooth.setAttribute("aria-valuetext", smooth.value);
    ask();
  };
  for (const control of [smooth, log]) control.onkeydown = (event) => event.stopPropagation(); // or JupyterLab takes keys
  plot.onkeydown = (event) => {
    const moved = { ArrowLeft: [-0.1, -0.1], ArrowRight: [0.1, 0.1], "+": [0.2, -0.2], "-": [-0.3, 0.3] }[event.key];
    if (event.key === "Home") {
      ranges = {};
      revision++; // what the mouse has zoomed, too
    } else if (moved) {
      for (const name of Object.keys(plot._fullLayout ?? {}).filter((each) => /^xaxis\d*$/.test(each))) {
        const [low, high] = plot._fullLayout[name].range, width = high - low;
        ranges[name] = [low + moved[0] * width, high + moved[1] * width];
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
    ask();
  };

  const sized = new ResizeObserver(ask), themed = new MutationObserver(ask);
  sized.observe(plot);
  themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  document.addEventListener("visibilitychange", ask);
  const changed = () => {
    moving ||= drawn !== null; // a chart that never changes has no room for more
    clearTimeout(settle);
    settle = setTimeout(() => {
      moving = false;
      ask();
    }, SETTLED_MS);
    ask();
  };
  const whole = () => {
    if (drawn) drawn.at = 0; // for its figures at the pointer
    ask();
  };
  plot.addEventListener("pointerenter", whole);
  const changes = ["series", "panels"].map((trait) => `change:${trait}`);
  changes.forEach((change) => model.on(change, changed));
  ask();
  return () => {
    gone = true;
    texts();
    changes.forEach((change) => model.off(change, changed));
    clearTimeout(settle);
    document.removeEventListener("visibilitychange", ask);
    sized.disconnect();
    themed.disconnect();
    if (Plotly) Plotly.purge(plot);
  };
}

export default { render };
