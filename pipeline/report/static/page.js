// What the views share: elements, data, and when a view is built.

/** View kind -> function(root, content, blob) that fills `root`. */
const views = {};
const SVG = "http://www.w3.org/2000/svg";

/** Return an element; text among `children` stays text, whatever it contains. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Return a select element with a label around it; `options` are [value, text]. */
function choice(label, options, change) {
  const select = element("select", { onchange: () => change(select.value) });
  for (const [value, text] of options) select.append(element("option", { value }, text));
  return { label: element("label", {}, label, select), select };
}

/** Return the value of a `lang` attribute, none for trees. */
const languageTag = (language) => (language === "tree" ? null : language.replace("_", "-"));

const languageName = (language) => new Intl.DisplayNames(["en"], { type: "language" }).of(languageTag(language));

const colour = (index) => `var(--c${index % 8})`;

/** Return a function that calls `run` once no call has come for `delay` milliseconds. */
function settled(run, delay = 120) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(run, delay); };
}

/** Return content and blob of packed data: base64 of gzip of the JSON's length, the JSON and the blob. */
async function unpack(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(whole.buffer).getUint32(0, true);
  const content = JSON.parse(new TextDecoder().decode(whole.subarray(4, 4 + length)));
  return { content, blob: whole.slice(4 + length) };
}

/** Return a view's packed data: from the page, or at a click from the file beside it, which calls `arrived`. */
async function dataOf(root) {
  const { name, beside } = root.dataset;
  if (!beside) return document.getElementById(`data-${name}`).textContent;
  const button = element("button", { type: "button", class: "main" }, `Load the model: ${beside}`);
  root.append(button);
  await new Promise((clicked) => { button.addEventListener("click", clicked, { once: true }); });
  button.replaceWith("Loading; this takes a while.");
  return new Promise((resolve, reject) => {
    globalThis.arrived = (text) => { root.replaceChildren(); resolve(text); };
    const onerror = () => reject(new Error(`${beside} is not beside this page`));
    document.head.append(element("script", { src: beside, onerror }));
  });
}

/** Build a view once; later calls return the same promise. */
function build(root) {
  return root.built ??= fill(root);
}

async function fill(root) {
  try {
    const { content, blob } = await unpack(await dataOf(root));
    await views[root.dataset.view](root, content, blob);
    root.dataset.ready = "true";
  } catch (error) {
    root.replaceChildren(element("p", { class: "error" }, `This part of the page could not be built: ${error.message}`));
    console.error(error);
  }
}

/** Open the section that an address names by its hash, or the line of the test set, and scroll there. */
async function openTarget(hash) {
  const line = /^#line=([0-9]+)$/u.exec(hash)?.[1];
  const list = document.querySelector("[data-view=translations]");
  const target = line && list ? list.closest("details") : document.getElementById(hash.slice(1));
  if (!target) return;
  document.querySelector("details.target")?.classList.remove("target");
  target.classList.add("target");
  target.open = true;
  await Promise.all(Array.from(target.querySelectorAll("[data-view]"), build));
  target.scrollIntoView();
  if (line) list.find(Number(line));
}

/** Show everything on paper: closed sections open, and views that were not built have what pages without JavaScript have. */
function printed() {
  const closed = [...document.querySelectorAll("details:not([open])")];
  const empty = [...document.querySelectorAll("[data-view]")].filter((root) => !root.built);
  for (const section of closed) section.open = true;
  for (const root of empty) {
    root.built = true; // Opening the section builds nothing now.
    root.innerHTML = root.parentNode.querySelector(`#data-${root.dataset.name} + noscript`)?.textContent ?? "";
  }
  addEventListener("afterprint", () => {
    for (const root of empty) { root.built = null; root.replaceChildren(); }
    for (const section of closed) section.open = false;
  }, { once: true });
}

// The last module of the script calls it. A view inside a closed section is built when the section is first opened.
function start() {
  for (const root of document.querySelectorAll("[data-view]")) {
    const section = root.closest("details");
    if (!section || section.open) build(root);
    else section.addEventListener("toggle", () => { if (section.open) build(root); });
  }
  addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    // In a frame, as MLflow shows the page, the link would lead to the outer page.
    event.preventDefault();
    if (window === window.top) history.pushState(null, "", link.hash);
    openTarget(link.hash);
  });
  addEventListener("beforeprint", printed);
  addEventListener("hashchange", () => openTarget(location.hash));
  openTarget(location.hash);
}
