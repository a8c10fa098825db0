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

const NARROW = 640, HEIGHT = 300, MARKED = 20, HIDDEN_MS = 500;
const MARKS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];

function render({ model, el }) {
  const add = (parent, tag, more) => parent.appendChild(Object.assign(document.createElement(tag), more));
  const bar = add(el, "div", { className: "el-controls" }), plot = add(el, "div", { className: "el-plot", tabIndex: 0 });
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
      const color = style.getPropertyValue(`--el-series-${each.color % 7}`).trim(), weight = +smooth.value;
      const common = {
        x, name: each.name, legendgroup: each.name, xaxis: `x${id}`, yaxis: `y${id}`, type: "scatter",
        hovertemplate: `%{y:.4g}<extra>${each.name}</extra>`,
      };
      const mode = steps || x.length > MARKED ? "lines" : "lines+markers";
      const line = { color, width: steps ? 1 : 2, dash: each.dash }, marker = { symbol: MARKS[each.color % 7], size: 6 };
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

  const draw = async () => {
    wanted = 0;
    Plotly ??= await plotly(model);
    if (gone || document.hidden || !plot.isConnected) return; // nobody sees it
    if (!plot.clientWidth) return void setTimeout(ask, HIDDEN_MS); // as while JupyterLab changes its theme
    const style = getComputedStyle(plot), panels = model.get("panels");
    plot.setAttribute("aria-label", model.get("alt"));
    await Plotly.react(plot, traces(model.get("series"), style), layout(panels, plot.clientWidth < NARROW, style), {
      displaylogo: false, displayModeBar: true, modeBarButtons: [[
        "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d",
        {
          name: "Save as SVG", icon: Plotly.Icons.camera,
          click: () => Plotly.downloadImage(plot, { format: "svg", filename: "curves" }),
        },
      ]],
    });
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
  const changes = ["series", "panels"].map((trait) => `change:${trait}`);
  changes.forEach((change) => model.on(change, ask));
  ask();
  return () => {
    gone = true;
    changes.forEach((change) => model.off(change, ask));
    document.removeEventListener("visibilitychange", ask);
    sized.disconnect();
    themed.disconnect();
    if (Plotly) Plotly.purge(plot);
  };
}

export default { render };
