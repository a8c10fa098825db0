// Front end of Slider: the browser's own slider, whose value is announced and shown as a text.
function render({ model, el }) {
  const label = document.createElement("label"), name = document.createElement("span"), text = document.createElement("output");
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, step: 1 });
  label.style.cssText = "display: flex; align-items: center; gap: 0.6em; height: 32px; font-size: 13px";
  name.style.cssText = "width: 10em; text-align: right; flex: none";
  slider.style.width = "18em";
  label.append(name, slider, text);
  el.append(label);

  const say = () => {
    const said = model.get("texts")[+slider.value] ?? "";
    slider.setAttribute("aria-valuetext", said);
    text.textContent = said;
  };
  const draw = () => {
    name.textContent = model.get("label");
    slider.setAttribute("aria-label", model.get("label")); // the text in the label is the value, which is announced anyway
    slider.max = model.get("texts").length - 1;
    slider.value = model.get("index");
    slider.disabled = model.get("disabled");
    label.title = model.get("hint");
    say();
  };
  slider.oninput = say;
  slider.onkeydown = (event) => { // or JupyterLab takes these keys
    if (/^(Arrow|Page|Home|End)/.test(event.key)) event.stopPropagation();
  };
  slider.onchange = () => { // when it rests
    model.set("index", +slider.value);
    model.save_changes();
  };
  const changes = ["label", "texts", "index", "disabled", "hint"].map((trait) => `change:${trait}`);
  changes.forEach((change) => model.on(change, draw));
  draw();
  return () => changes.forEach((change) => model.off(change, draw));
}

export default { render };
