// A box dragged over a picture fills the four fields of its form, in pixels of the picture, and sends it.
import { onChange } from "./page.js";

const ready = new WeakSet();

function watch(frame) {
  if (ready.has(frame)) return;
  ready.add(frame);
  const form = document.getElementById(frame.dataset.box);
  const image = frame.querySelector("img");
  const rect = frame.querySelector(".drawn-box rect");
  const [width, height] = ["width", "height"].map((name) => Number(image.getAttribute(name)));
  let from = null;

  /** The pointer in pixels of the picture, which is drawn as large as fits into the frame. */
  const place = (event) => {
    const area = frame.getBoundingClientRect();
    const scale = Math.min(area.width / width, area.height / height);
    const x = (event.clientX - area.left - (area.width - width * scale) / 2) / scale;
    const y = (event.clientY - area.top - (area.height - height * scale) / 2) / scale;
    return [Math.min(Math.max(x, 0), width), Math.min(Math.max(y, 0), height)];
  };
  const draw = (to) => {
    const [left, right] = [from[0], to[0]].sort((a, b) => a - b).map(Math.round);
    const [top, bottom] = [from[1], to[1]].sort((a, b) => a - b).map(Math.round);
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) {
      rect.setAttribute(name, value);
    }
    for (const [name, value] of Object.entries({ left, top, right, bottom })) form.elements[name].value = value;
    return right > left && bottom > top;
  };
  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    frame.setPointerCapture(event.pointerId);
    from = place(event);
  });
  frame.addEventListener("pointermove", (event) => from && draw(place(event)));
  frame.addEventListener("pointerup", (event) => {
    if (!from) return;
    const drawn = draw(place(event));
    from = null;
    if (drawn) form.requestSubmit();
  });
  frame.addEventListener("pointercancel", () => (from = null));
}

onChange(() => document.querySelectorAll("[data-box]").forEach(watch));
