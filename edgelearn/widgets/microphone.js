// Front end of Microphone: sends the sound of the browser's microphone as blocks of float32 samples, one channel.

// Runs on the browser's audio thread, which loads modules from URLs: this one is made from text.
const WORKLET = `
registerProcessor("edgelearn-tap", class extends AudioWorkletProcessor {
  process(inputs) {
    if (inputs[0].length) this.port.postMessage(inputs[0][0].slice());
    return true;
  }
});`;
const BLOCK_SECONDS = 0.1;

async function listen(onBlock) {
  if (!navigator.mediaDevices) {
    throw new Error("the browser gives the microphone only to pages from localhost or over https");
  }
  const plain = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio: plain });
  const context = new AudioContext();
  const close = async () => {
    stream.getTracks().forEach((track) => track.stop());
    await context.close();
  };
  try {
    const module = URL.createObjectURL(new Blob([WORKLET], { type: "text/javascript" }));
    await context.audioWorklet.addModule(module);
    URL.revokeObjectURL(module);
    const tap = new AudioWorkletNode(context, "edgelearn-tap");
    let parts = [], count = 0;
    const send = () => {
      if (!count) return;
      const block = new Float32Array(count);
      parts.reduce((at, part) => (block.set(part, at), at + part.length), 0);
      parts = [];
      count = 0;
      onBlock(block, context.sampleRate);
    };
    tap.port.onmessage = ({ data }) => {
      parts.push(data);
      count += data.length;
      if (count >= BLOCK_SECONDS * context.sampleRate) send();
    };
    context.createMediaStreamSource(stream).connect(tap);
    return async () => {
      tap.port.onmessage = null;
      send();
      await close();
    };
  } catch (error) {
    await close();
    throw error;
  }
}

function render({ model, el }) {
  const button = document.createElement("button");
  button.className = "jupyter-button widget-button";
  const status = document.createElement("span");
  status.style.marginLeft = "0.7em";
  const meter = Object.assign(document.createElement("meter"), { min: -60, max: 0, low: -40, high: -3, optimum: -20, value: -60 });
  meter.hidden = true;
  meter.setAttribute("aria-label", "Level");
  meter.style.cssText = "width: 8em; margin-left: 0.7em";
  el.append(button, meter, status);
  const measure = (block) => { // its peak, in dB below the loudest that there can be
    const peak = block.reduce((most, sample) => Math.max(most, Math.abs(sample)), 1e-6);
    meter.value = 20 * Math.log10(peak);
    meter.setAttribute("aria-valuetext", `${Math.round(meter.value)} dB`);
    status.textContent = peak >= 0.99 ? "too loud" : "listening …";
  };

  let stop = null, refused = false; // refused: Python asked to stop before the browser had opened the microphone
  const draw = () => {
    button.textContent = stop ? "Stop" : model.get("label");
    meter.hidden = !stop;
  };
  const end = async () => {
    const stopping = stop;
    stop = null;
    refused = true;
    draw();
    if (!stopping) return;
    await stopping();
    status.textContent = "";
    model.send({ type: "end" });
  };
  button.onclick = async () => {
    button.disabled = true;
    try {
      if (stop) {
        await end();
      } else {
        refused = false;
        model.send({ type: "begin" });
        const opened = await listen((block, rate) => {
          measure(block);
          model.send({ type: "samples", rate }, undefined, [block.buffer]);
        });
        if (refused) {
          await opened();
        } else {
          stop = opened;
          status.textContent = "listening …";
          draw();
        }
      }
    } catch (error) {
      status.textContent = `No microphone: ${error.message}. Allow its use in the browser, or upload recordings.`;
      model.send({ type: "error", message: error.message });
    }
    button.disabled = false;
  };
  model.on("change:label", draw);
  const stopped = ({ type }) => type === "stop" && end();
  model.on("msg:custom", stopped);
  draw();
  return () => {
    model.off("msg:custom", stopped);
    return end();
  };
}

export default { render };
