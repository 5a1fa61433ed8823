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
const languageTag = (language) => (language === "tree" ? null : language);

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

async function build(root) {
  try {
    const { content, blob } = await unpack(document.getElementById(`data-${root.dataset.name}`).textContent);
    await views[root.dataset.view](root, content, blob);
    root.dataset.ready = "true";
  } catch (error) {
    root.replaceChildren(element("p", { class: "error" }, `This part of the page could not be built: ${error.message}`));
    console.error(error);
  }
}

/** Open the section that an address names by its hash. */
function openTarget(hash) {
  const target = document.getElementById(hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

// The last module of the script calls it. A view inside a closed section is built when the section is first opened.
function start() {
  for (const root of document.querySelectorAll("[data-view]")) {
    const section = root.closest("details");
    if (!section || section.open) build(root);
    else section.addEventListener("toggle", () => build(root), { once: true });
  }
  addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    openTarget(link.hash);
    if (window === window.top) return;
    // In a frame, as MLflow shows the page, the link would lead to the outer page.
    event.preventDefault();
    document.querySelector(link.hash).scrollIntoView();
  });
  addEventListener("hashchange", () => openTarget(location.hash));
  openTarget(location.hash);
}
