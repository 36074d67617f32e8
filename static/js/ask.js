// The first page: drop or paste a picture, see it before asking, and let a suggestion fill the question.
const form = document.getElementById("ask");

if (form) {
  const file = document.getElementById("picture-file");
  const drop = document.getElementById("drop");
  const note = document.getElementById("picture-note");
  const question = document.getElementById("question");
  const preview = drop.querySelector(".preview img");
  const words = drop.querySelector("strong");
  const inviting = words.textContent;
  const kept = form.querySelector('[name="picture_hash"]');
  const keptSrc = kept && preview.getAttribute("src");
  let shown = null;

  function show(src, alt, said) {
    if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
    if (src) preview.src = src;
    else preview.removeAttribute("src");
    preview.alt = alt;
    preview.hidden = !src;
    drop.classList.toggle("filled", Boolean(src));
    words.textContent = src ? "Drop, paste or choose another" : inviting;
    note.textContent = said;
  }

  /** Show the picture that the form would send: a file, else a sample, else the one kept from an earlier try. */
  function sync() {
    const chosen = file.files[0];
    const radios = [...form.querySelectorAll('[name="sample"]:checked')];
    if (chosen) for (const radio of radios) radio.checked = false;
    const holds = chosen ?? radios[0] ?? kept;
    if (kept) kept.disabled = holds !== kept;
    if (holds === shown) return;
    shown = holds;
    if (!holds) {
      show("", "", "");
    } else if (holds === kept) {
      show(keptSrc, "Your picture", "");
    } else if (holds === chosen) {
      const size = (chosen.size / 1e6).toLocaleString("en-GB", { maximumFractionDigits: 2 });
      show(URL.createObjectURL(chosen), "Your picture", `${chosen.name}, ${size} MB`);
    } else {
      const sample = holds.closest("label").querySelector("img");
      show(sample.src, sample.alt, sample.alt);
    }
  }

  function take(files) {
    const picture = [...files].find((one) => one.type.startsWith("image/")) ?? files[0];
    if (!picture) return false;
    const transfer = new DataTransfer();
    transfer.items.add(picture);
    file.files = transfer.files;
    sync();
    question.focus();
    return true;
  }

  preview.addEventListener("error", () => {
    preview.hidden = true;
    note.textContent += " · this browser cannot show it; the server may still read it";
  });
  form.addEventListener("change", (event) => {
    // The picture chosen last takes the place of the other.
    if (event.target.name === "sample") file.value = "";
    sync();
    if (event.target === file && file.files.length) question.focus();
  });
  // The fields are emptied after this event.
  form.addEventListener("reset", () => setTimeout(sync));
  form.addEventListener("click", (event) => {
    const link = event.target.closest("[data-question]");
    if (!link) return;
    event.preventDefault();
    question.value = link.dataset.question;
    question.focus();
  });
  form.addEventListener("submit", () => {
    // Only once: a second click would ask the same again. Coming back to the page makes it ready again.
    for (const button of form.querySelectorAll('[type="submit"]')) button.disabled = true;
  });
  addEventListener("pageshow", () => {
    for (const button of form.querySelectorAll('[type="submit"]')) button.disabled = false;
    // The browser may have filled the fields again as they were left.
    sync();
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length && take(event.clipboardData.files)) event.preventDefault();
  });
  for (const name of ["dragenter", "dragover"]) {
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    drop.classList.remove("over");
    take(event.dataTransfer.files);
  });
}
