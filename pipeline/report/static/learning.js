// A slider over the validations of the training: what the model wrote for the same lines, beside its loss.

const FRAME = 900; // milliseconds between two validations as one watches

views.learning = async (root, { title, languages, lines, steps }) => {
  const box = document.querySelector("[data-view=translate][data-beside='']");
  if (box) await build(box); // It has the words of the training text.
  const points = steps.map(({ update, loss }) => [update, loss]);
  const chart = curves({ title, x: "update", series: [{ name: "", points }] });
  const said = element("p", { class: "hint", "aria-live": "polite" });
  const slider = element("input", { type: "range", min: 0, max: steps.length - 1, value: 0, oninput: () => { pause(); show(); } });
  const play = element("button", { type: "button", onclick: () => (timer ? pause() : watch()) }, "Watch it learn");
  const outputs = lines.map(() => element("dd", { dir: "auto", lang: languageTag(languages[1]) }));
  let timer = 0;

  function show() {
    const { update, loss, outputs: texts } = steps[slider.value];
    said.textContent = `After update ${update.toLocaleString("en")}: loss ${loss.toFixed(3)}, perplexity ${Math.exp(loss).toPrecision(3)}.`;
    slider.setAttribute("aria-valuetext", `update ${update}`);
    texts.forEach((text, i) => {
      const [own, reference] = [words(text), words(lines[i].reference)];
      outputs[i].replaceChildren(...marked(own, common(own, reference)[0], (wrong) => element("mark", {}, wrong)));
    });
    chart.read(update);
  }

  function watch() {
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "Pause";
    show();
    timer = setInterval(() => {
      slider.stepUp();
      show();
      if (slider.value === slider.max) pause();
    }, FRAME);
  }

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Watch it learn";
  }

  root.append(element("div", { class: "controls" }, play, element("label", {}, "validation", slider)), said,
    element("div", { class: "charts" }, chart, element("ol", { class: "lines" }, ...lines.map(({ source, reference }, i) => element("li", {}, element("dl", {},
      element("dt", {}, "source"), element("dd", { dir: "auto", lang: languageTag(languages[0]) },
        ...marked(words(source), words(source).map((word) => !unseenIn(word).length), (unseen) => element("span", { class: "unseen" }, unseen))),
      element("dt", {}, "output"), outputs[i],
      element("dt", {}, "reference"), element("dd", { dir: "auto", lang: languageTag(languages[1]) }, reference)))))));
  show();
};
