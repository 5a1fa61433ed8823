// A box that translates, or parses, with the run's own model, in the page.

const YIELD = 40; // milliseconds of computing after which the page may answer

views.translate = (root, content, blob) => {
  const { languages, subwords, targetSymbols, tokenizer, detokenizer, settings, searching, longest, example } = content;
  const parses = languages[1] === "tree";
  const model = new Transformer(content, blob);
  const vocabulary = (subwords.kind === "bpe" ? makeBytePairs : makeWordPieces)(subwords);
  const [written, target] = targetSymbols ? [makeSymbols(targetSymbols), targetSymbols] : [vocabulary, subwords];
  const tokenize = parses ? makeWords() : makeTokenizer(tokenizer);
  const detokenize = parses ? makeTrees(tokenizer.tokenizer, targetSymbols?.symbols.slice(0, targetSymbols.usedRows)) : makeDetokenizer(detokenizer);
  const text = (ids, source) => detokenize(written.decode(ids), source);
  const input = element("textarea", { rows: 3, lang: languages[0], dir: "auto", spellcheck: "false" });
  input.value = example;
  const output = element("div", { class: "translation", lang: languageTag(languages[1]), dir: "auto", "aria-live": "polite", role: "status" });
  const said = element("p", { class: "hint" });
  const button = element("button", { type: "button", onclick: () => run() }, parses ? "Parse" : "Translate");
  const looked = element("div");
  let show = null;
  let turn = 0; // a later request ends an earlier one

  const encode = (line) => {
    const ids = split(line).length ? vocabulary.encode(tokenize(line)) : [];
    if (ids.length > longest) throw new Error(`a line has ${ids.length} subwords, and at most ${longest} are ${parses ? "parsed" : "translated: split it"}`);
    return ids.length ? [...ids, EOS] : [];
  };

  async function run() {
    const own = ++turn;
    const start = performance.now();
    let rested = start;
    const done = [];
    said.textContent = parses ? "parsing" : "translating";
    output.replaceChildren();
    output.ariaBusy = "true"; // fragments are not read aloud
    try {
      let last = null;
      for (const line of input.value.split("\n")) {
        const source = encode(line);
        if (!source.length) { done.push(""); continue; }
        const found = await search(model, source, searching, target.usedRows, async (ids) => {
          if (performance.now() - rested < YIELD) return true;
          output.textContent = [...done, text(ids, line)].join("\n");
          await new Promise((resume) => { setTimeout(resume); });
          rested = performance.now();
          return own === turn;
        });
        if (own !== turn) return;
        done.push(text(found, line));
        last = { source, found };
      }
      output.replaceChildren(...done.flatMap((line, i) => (i ? [element("br"), line] : [line])));
      output.ariaBusy = "false";
      output.dataset.lines = JSON.stringify(done);
      said.textContent = `${((performance.now() - start) / 1000).toFixed(2)} seconds in this page`;
      if (last) look(last);
    } catch (error) {
      output.ariaBusy = "false";
      output.replaceChildren(element("span", { class: "error" }, error.message));
      said.textContent = "";
    }
  }

  function look({ source, found }) {
    const names = (ids, { symbols }) => ids.map((id) => symbols[id]);
    show ??= attentionView(looked, [], { layers: settings.N, heads: settings.h });
    const all = [BOS, ...found];
    show([{ title: "", source: names(source, subwords), target: names(all, target), ...model.attention(source, all) }]);
  }

  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  root.append(
    element("label", {}, parses
      ? `${languages[0]}, one sentence a line, spaces between words and punctuation; Ctrl-Enter parses`
      : `${languages[0]}, one sentence a line; Ctrl-Enter translates`, input), button, said, output, looked,
  );
};

start();
