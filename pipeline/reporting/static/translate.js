// A box that translates with the run's own model, in the page.

const YIELD = 40; // milliseconds of computing after which the page may answer

views.translate = (root, content, blob) => {
  const { languages, subwords, tokenizer, detokenizer, settings, searching, longest, example } = content;
  const model = new Transformer(content, blob);
  const vocabulary = (subwords.kind === "bpe" ? makeBytePairs : makeWordPieces)(subwords);
  const tokenize = makeTokenizer(tokenizer);
  const detokenize = makeDetokenizer(detokenizer);
  const input = element("textarea", { rows: 3, lang: languages[0], dir: "auto", spellcheck: "false" });
  input.value = example;
  const output = element("div", { class: "translation", lang: languages[1], dir: "auto", "aria-live": "polite", role: "status" });
  const said = element("p", { class: "hint" });
  const button = element("button", { type: "button", onclick: () => run() }, "Translate");
  const looked = element("div");
  let show = null;
  let turn = 0; // a later request ends an earlier one

  const encode = (line) => {
    const ids = vocabulary.encode(tokenize(line));
    if (ids.length > longest) throw new Error(`a line has ${ids.length} subwords, and at most ${longest} are translated: split it`);
    return ids.length ? [...ids, EOS] : [];
  };

  async function run() {
    const own = ++turn;
    const start = performance.now();
    let rested = start;
    const done = [];
    said.textContent = "translating";
    output.replaceChildren();
    try {
      let last = null;
      for (const line of input.value.split("\n")) {
        const source = encode(line);
        if (!source.length) { done.push(""); continue; }
        const target = await search(model, source, searching, subwords.usedRows, async (ids) => {
          if (performance.now() - rested < YIELD) return true;
          output.textContent = [...done, detokenize(vocabulary.decode(ids))].join("\n");
          await new Promise((resume) => { setTimeout(resume); });
          rested = performance.now();
          return own === turn;
        });
        if (own !== turn) return;
        done.push(detokenize(vocabulary.decode(target)));
        last = { source, target };
      }
      output.replaceChildren(...done.flatMap((line, i) => (i ? [element("br"), line] : [line])));
      output.dataset.lines = JSON.stringify(done);
      said.textContent = `${((performance.now() - start) / 1000).toFixed(2)} seconds in this page`;
      if (last) look(last);
    } catch (error) {
      output.replaceChildren(element("span", { class: "error" }, error.message));
      said.textContent = "";
    }
  }

  function look({ source, target }) {
    const names = (ids) => ids.map((id) => subwords.symbols[id]);
    show ??= attentionView(looked, [], { layers: settings.N, heads: settings.h });
    const written = [BOS, ...target];
    show([{ title: "", source: names(source), target: names(written), ...model.attention(source, written) }]);
  }

  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  root.append(
    element("label", {}, `${languages[0]}, one sentence a line; Ctrl-Enter translates`, input), button, said, output, looked,
  );
};

start();
