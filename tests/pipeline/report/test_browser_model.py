"""The page's model does what `wmt translate` and `wmt parse` do with the same 8-bit weights; its text code is nmt's."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import HOSTILE, PATIENCE, expect, findings, open_sections, opened
from command_line import wmt
from model_folders import TREES, WORDS, folder_of, parser_of

from nmt import codec
from nmt.codec import Codec
from nmt.common.tensors import WEIGHTS, load_tensors
from nmt.ids import BOS, PAD, UNK
from nmt.inference.loading import LoadedModel
from nmt.inference.model_folder import load_description, save_model
from nmt.inference.translator import Translator
from nmt.model import Transformer
from nmt.parsing.delinearisation import delinearise
from nmt.parsing.trees import LINEARISATIONS, TAG, Linearisation, linearise, read_trees
from nmt.text import subwords, words
from nmt.text.settings import SubwordSettings, TokenizerSettings
from pipeline.report import browser_model, page
from pipeline.report import sentences as sentences_view
from pipeline.report.page import Block, Heading, View
from pipeline.report.sentences import Line

STATIC = Path(browser_model.__file__).parent / "static"
VOCABULARY = (*WORDS.split(), *("don't", '"it\'s"', "1,000", "Mr.", "x@@y"))
UNICODE = [
    *("It's the dogs' U.S. house, isn't it?", "He said: 'no'.", "It was 'so.'", "", "the end.'", "' '", "DOTMULTI x"),
    *("“Quoted” „so“ «là» ‚x‘ – and — ´acute´ …", "3,000 or a,b or ,x, 1,"),
    *("...dots.. and. more.", "a-b well-known x-"),
    *("No. 5 and no. Five; Mr. Smith vs. Art. 3", "e.g. i.e. z.B. usw. Nr. 3", "@-@ a @-@ b", "' single ' quotes '"),
    *("\u00a0no\u2009break\u3000spaces\u0085next\u2028line\ufeffbom", "tab\tcontrol\x01\x1f\x7f"),
    *("l'homme d'Aujourd'hui c'est", "中文 漢字 日本語テスト 한국어", "¿qué? ¡sí! $5 €7 (x) [y] {z}", "naïve ẞ ǅ ﬁ"),
    *("💡 emoji 👩\u200d👩\u200d👧", "100 % sure : yes ; no !", "\u2581 under \u2581score", "<a href='x'>&amp;</a>"),
    *("١٢٣,٤٥٦ ½,x", "x'y 's s' 5's", "\"\"\" ''' ``` `x`"),
]


def sentences(count: int) -> list[str]:
    chosen = random.Random(3)
    return [" ".join(chosen.choices(VOCABULARY, k=chosen.randrange(1, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def scripts(browser: Any) -> Any:
    """A page with the text code as globals."""
    made = browser.new_page()
    for name in ("text.js", "trees.js"):
        made.add_script_tag(content=(STATIC / name).read_text(encoding="utf-8"))
    return made


def dequantized(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that the page computes with: matrices rounded to 8 bits, vectors as they are."""
    rounded = dict(weights)
    for name, tensor in weights.items():
        if tensor.dim() == 2:
            steps, scales = browser_model.quantize(tensor)
            rounded[name] = torch.from_numpy(steps.astype(np.float32) * scales[:, None])
    return rounded


@contextmanager
def model_page(browser: Any, folder: Path, example: str, *further: Block, **options: Any) -> Iterator[Any]:
    """A page in which one uses the model of a folder, with further blocks below it."""
    path = folder.with_name("page.html")
    (folder / "subwords" / words.FILE).write_text("dog\n")
    blocks = [Heading("Model", 1), *browser_model.section(folder, [example]), *further]
    path.write_text(page.html(blocks), encoding="utf-8")
    with opened(browser, path, **options) as shown:
        open_sections(shown)
        yield shown


def computed(shown: Any, lines: list[str], button: str) -> list[str]:
    """What the page makes of lines."""
    shown.locator("textarea").fill("\n".join(lines))
    shown.get_by_role("button", name=button).click()
    output = shown.locator(".translation[data-lines]")
    output.wait_for(timeout=4 * PATIENCE)
    texts: list[str] = json.loads(output.get_attribute("data-lines") or "")
    return texts


def learned(kind: str, *symbols: str) -> subwords.Subwords:
    size = {"merges": 60, "vocabulary": None} if kind == "bpe" else {"merges": None, "vocabulary": 320}
    settings = SubwordSettings.model_validate({"kind": kind, **size, "user_defined_symbols": symbols, "multiple_of": 8})
    return subwords.learn(dict.fromkeys(VOCABULARY, 3), settings)


@pytest.mark.parametrize("language", ["en_Latn", "de", "fr_Latn"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("tokenizer", ["moses", "none"])
def test_tokenizer_and_detokenizer_are_moses(scripts: Any, language: Any, tokenizer: Any, normalize: bool) -> None:
    hyphens = normalize and tokenizer == "moses"
    settings = TokenizerSettings(tokenizer=tokenizer, normalize_punctuation=normalize, aggressive_hyphens=hyphens)
    ours, _ = codec.tokenizers(language, "de", settings)
    lines = [*UNICODE, *sentences(100)]
    expected = [ours.tokenize(line) for line in lines]
    program = "([tables, lines]) => { const run = makeTokenizer(tables); return lines.map(run); }"
    tokenized = scripts.evaluate(program, [browser_model.tokenizer_tables(language, settings), lines])
    assert tokenized == expected
    in_page = scripts.evaluate("(lines) => lines.map((line) => bareWords(line))", expected)
    assert in_page == [words.unseen(line, set()) for line in expected]
    program = program.replace("makeTokenizer", "makeDetokenizer")
    detokenized = scripts.evaluate(program, [browser_model.detokenizer_tables(language, settings), expected])
    assert detokenized == [ours.detokenize(line) for line in expected]


@pytest.mark.parametrize(("kind", "symbols"), [("bpe", ()), ("wordpieces", ()), ("wordpieces", ("<2de>", "a|b", "(a"))])
def test_subwords_are_encoded_and_decoded_as_by_nmt(scripts: Any, kind: str, symbols: tuple[str, ...]) -> None:
    ours = learned(kind, *symbols)
    lines = [
        *(f"{symbol} the house{symbol}" for symbol in symbols),
        *(" ".join(line.split()) for line in UNICODE),
        *sentences(100),
        "\U0010ffff \U00100000 \u2581x",
    ]
    make = "makeBytePairs" if kind == "bpe" else "makeWordPieces"
    both = "lines.map((line) => [of.encode(line), of.decode(of.encode(line))])"
    program = f"([tables, lines]) => {{ const of = {make}(tables); return {both}; }}"
    in_page = scripts.evaluate(program, [browser_model.subword_tables(ours), lines])
    expected = [(ids := ours.encode(line), ours.decode(ids)) for line in lines]
    assert [tuple(both_ways) for both_ways in in_page] == expected
    chance = random.Random(4)
    outputs = [chance.choices(range(ours.used_rows), k=chance.randrange(5)) for _ in range(500)]
    program = f"([tables, outputs]) => {{ const of = {make}(tables); return outputs.map((ids) => of.decode(ids)); }}"
    decoded = scripts.evaluate(program, [browser_model.subword_tables(ours), outputs])
    assert decoded == [ours.decode(ids) for ids in outputs]


def bpe_model(folder: Path) -> Path:
    """Moses, a script, BPE and a beam, with a length penalty that decides between translations."""
    made = folder_of(folder, seed=2)
    path = made / "config.yaml"
    path.write_text(path.read_text().replace("alpha: 0.6", "alpha: 1.5").replace("source: en", "source: en_Latn"))
    return made


def other_model(folder: Path) -> Path:
    """Everything else: word pieces, raw text, learned positions, three tables, no biases, greedy search."""
    made = folder_of(folder, target="fr", positions="learned", sharing="none", projection_biases=False, d_k=4, h=3)
    description = load_description(made)
    pieces = learned("wordpieces")
    pieces.save(folder.parent / "pieces")
    raw = description.tokenizer.model_copy(update={"tokenizer": "none"})
    greedy = description.search.model_copy(update={"beam": 1})
    changed = description.model_copy(update={"vocabulary": pieces.size, "tokenizer": raw, "search": greedy})
    torch.manual_seed(2)
    save_model(made, Transformer(changed.model, pieces.size).state_dict(), changed, folder.parent / "pieces")
    return made


@pytest.mark.parametrize("make", [bpe_model, other_model])
def test_the_page_translates_as_wmt_translate(browser: Any, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Sentence by sentence where a line has several, however many."""
    folder = make(tmp_path / "model")
    lines = [
        "The dog. A dog of Mr. Dog! Dog?",
        "Dog? No. No. 5 of Ph.D. Dog. Dog 2.5. m².B. Dog.",
        "!  ? Dog.",
        " ".join(["The dog."] * 300),
        *sentences(100),
    ]
    loaded = LoadedModel(folder)
    loaded.transformer.load_state_dict(dequantized(load_tensors(folder / WEIGHTS)))
    expected = list(Translator(loaded, split="sentences").translate(lines))
    if loaded.description.search.beam > 1:
        settings = loaded.description.search.changed({"alpha": 0.0})
        without = Translator(loaded, settings=settings, split="sentences").translate(lines)
        assert sum(one != other for one, other in zip(expected, without, strict=True)) > 50
    with model_page(browser, folder, lines[0]) as shown:
        assert computed(shown, lines, "Translate") == expected
        assert len(set(expected)) > 20, "the model tells lines apart"
        # Attention and likeliest subwords are those of the last line.
        ids = loaded.encode(lines[-1])
        keys = shown.locator("p.keys .word").all_text_contents()
        assert "".join(keys) == re.sub(r"@@|\u2581", "", "".join(loaded.subwords.symbols(ids)))
        model = loaded.transformer
        logits = model.logits(model(torch.tensor([ids]), torch.tensor([[BOS]])))[0, 0].log_softmax(-1)
        logits[[PAD, BOS, UNK]] = -torch.inf
        probabilities, tokens = logits[: loaded.target_subwords.used_rows].exp().topk(4)
        told = zip(loaded.target_subwords.symbols(tokens.tolist()), (100 * probabilities).tolist(), strict=True)
        assert shown.locator(".likeliest li").all_text_contents() == [f"{symbol}{share:.1f}%" for symbol, share in told]


@pytest.mark.parametrize("name", LINEARISATIONS)
def test_any_output_becomes_the_tree_that_nmt_makes_of_it(scripts: Any, name: Linearisation) -> None:
    known = sorted({symbol for tree in read_trees(TREES, "TREES") for symbol in linearise(tree, name)})
    chosen = random.Random(5)
    symbols = [*known, TAG, "NP", "/NP", "(NP", ")NP", "/", "(", ")", "a(b"]
    pairs = [(" ".join(linearise(tree, name)), " ".join(tree.words())) for tree in read_trees(TREES, "TREES")]
    for _ in range(600):
        line = chosen.choices(symbols, k=chosen.randrange(12))
        words = chosen.choices(["the", "(dog)", "\u00a0Ünïcödé\U0001f600"], k=chosen.randrange(6))
        pairs.append((" ".join(line), " ".join(words)))
    settings = TokenizerSettings(tokenizer=name, normalize_punctuation=False, aggressive_hyphens=False)
    source, target = codec.tokenizers("en", "tree", settings, known)
    assert source.tokenize("a (b)  c\u2003d\x1ce") == scripts.evaluate("makeWords()('a (b)  c\u2003d\x1ce')")
    over_pairs = "pairs.map(([line, source]) => run(line, source))"
    program = f"([name, known, pairs]) => {{ const run = makeTrees(name, known); return {over_pairs}; }}"
    assert scripts.evaluate(program, [name, known, pairs]) == [target.detokenize(*pair) for pair in pairs]
    _, of_joint = codec.tokenizers("en", "tree", settings)
    assert scripts.evaluate(program, [name, None, pairs]) == [of_joint.detokenize(*pair) for pair in pairs]
    made = (delinearise(line.split(), words.split(), name, frozenset(known)) for line, words in pairs if words)
    assert len({repair for _, repairs in made for repair in repairs}) == 8, "every rule is needed"


@pytest.mark.parametrize(("name", "sharing", "seed"), [("vinyals", "output", 3), ("tensor2tensor", "none", 9)])
def test_a_page_parses_as_wmt_parse(browser: Any, tmp_path: Path, name: Linearisation, sharing: str, seed: int) -> None:
    folder = parser_of(tmp_path / "model", name, seed, sharing=sharing)
    lines = [*sentences(48), "the (old) man", "", *(" ".join(text.split()) for text in HOSTILE if len(text) < 100)]
    rounded = dequantized(load_tensors(folder / WEIGHTS))
    save_model(tmp_path / "rounded", rounded, load_description(folder), folder / "subwords")
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    # The page gives words to trees in order; `wmt parse` aligns those of outputs that have too many or too few.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Codec, "word_attention", lambda *_: None)
        assert wmt("parse", tmp_path / "rounded", "--input", tmp_path / "lines", "--output", tmp_path / "trees") == 0
    expected = (tmp_path / "trees").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(expected) == len(lines)
    assert len({re.sub(r"[^() ]+\)", ")", tree) for tree in expected}) > 15, "the model tells sentences apart"
    assert sum("(S " in tree for tree in expected) > 10
    with model_page(browser, folder, HOSTILE[0]) as shown:
        assert shown.locator("textarea").input_value() == HOSTILE[0]
        assert computed(shown, lines, "Parse") == expected
        shown.locator("textarea").fill(lines[0])
        shown.get_by_role("button", name="Parse").click()
        queries = shown.locator("p.queries .word")
        loaded = LoadedModel(folder)
        queries.first.wait_for()
        words = "".join(shown.locator("p.keys .word").all_text_contents())
        assert words == "".join(loaded.subwords.symbols(loaded.encode(lines[0]))).replace("@@", "")
        symbols = loaded.target_subwords.symbols(range(4, loaded.target_subwords.used_rows))
        assert set(queries.all_text_contents()[:-1]) <= set(symbols)


def test_too_long_lines_and_unknown_words_are_named_and_nothing_hostile_runs(browser: Any, tmp_path: Path) -> None:
    hostile = "</textarea><img src=x onerror=alert(1)>"
    line = {"line": 1, "source": "a dog", "reference": "b"}
    steps = [{"update": 1, "loss": 1.0, "outputs": ["b"]}]
    content = {"title": "t", "languages": ["en", "de"], "lines": [line], "steps": steps}
    blocks = Heading("L"), View("learning", "learning", content)
    with model_page(browser, folder_of(tmp_path / "model"), hostile, *blocks) as shown:
        assert shown.locator("textarea").input_value() == hostile
        assert shown.locator(".looked").is_visible(), "the example is translated without a click"
        alone = computed(shown, ["the dog"], "Translate")
        assert computed(shown, ["dog " * 300, "the dog"], "Translate") == ["", *alone]
        refused = shown.locator(".translation .error").text_content()
        assert refused == "Line 1: a sentence has 300 subwords, and at most 256 are translated."
        assert shown.locator("p.keys .word").all_text_contents()[:2] == ["the", "dog"]
        for nothing in ("", "dog " * 300):
            computed(shown, [nothing], "Translate")
            assert not shown.locator(".looked").is_visible(), "no attention of an earlier line"
        computed(shown, ["dog"], "Translate")
        assert shown.locator(".unseen").all_text_contents() == ["a"], "of the line in the view of learning"
        computed(shown, ["dog het dog"], "Translate")
        assert shown.locator(".unseen").all_text_contents() == ["het", "a"]
        said = shown.locator(".asked strong")
        assert said.text_content() == "Not in the training text: het. "
        computed(shown, [" ".join(f"{word}x" for word in "abcdefghij")], "Translate")
        assert said.locator("bdi").count() == 8
        assert (said.text_content() or "").endswith("hx, and 2 more. ")
        computed(shown, [" "], "Translate")
        assert shown.locator(".asked .hint").text_content() == "Type a sentence."


def test_punctuation_is_no_part_of_a_word_of_raw_text(browser: Any, tmp_path: Path) -> None:
    with model_page(browser, other_model(tmp_path / "model"), "dog") as shown:
        computed(shown, ["(dog, dog!) Mary's.. $ dog"], "Translate")
        assert shown.locator(".asked strong").text_content() == "Not in the training text: Mary's. "
        assert shown.locator(".unseen").all_text_contents() == ["Mary's.."]


def test_one_watches_it_write_and_runs_a_line_of_the_test_set(browser: Any, tmp_path: Path) -> None:
    lines = [Line(text, text, text, 1.0) for text in ("the old man", "a dog")]
    blocks = Heading("Lines"), sentences_view.view({"translation": lines}, "en", "de")
    with model_page(browser, folder_of(tmp_path / "model", seed=2), "a dog", *blocks, bypass_csp=True) as shown:
        queries, steps = shown.locator("p.queries .word"), shown.locator("input[type=range]")
        every = queries.count()
        symbols = "(words) => words.map((word) => word.firstChild.textContent).join(' ')"
        chosen = shown.locator(".beam text.chosen").evaluate_all(symbols).replace("@@ ", "")
        assert chosen == " ".join(queries.all_text_contents()), "the branch of what was written"
        columns = shown.locator(".beam g:not(.later)")
        assert columns.count() >= int(steps.get_attribute("max") or 0)
        steps.fill("1")
        expect(columns).to_have_count(1)
        expect(queries).to_have_count(1)
        shown.get_by_role("button", name="Watch it write").click()
        expect(shown.get_by_role("button", name="Watch it write")).to_be_visible(timeout=PATIENCE)
        assert steps.input_value() == steps.get_attribute("max")
        expect(queries).to_have_count(every)
        shown.locator(".lines button").last.click()
        assert shown.locator("textarea").input_value() == "a dog"
        assert findings(shown) == []


@pytest.mark.parametrize(("pair", "command"), [("en-de", "wmt translate"), ("en-tree", "wmt parse")])
def test_a_large_model_is_in_a_file_beside_the_page(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: str, command: str
) -> None:
    folder = tmp_path / "model"
    folder_of(folder) if pair == "en-de" else parser_of(folder, "vinyals", sharing="output")
    [inside] = browser_model.section(folder, ["the dog"])
    monkeypatch.setattr(browser_model, "LARGEST", 1000)
    beside, why = browser_model.section(folder, ["the dog"])
    assert beside._replace(beside="") == inside
    assert f" MB, are in a file beside this page. At a terminal: {command} {folder}; over HTTP: " in why.text
    assert why.text.endswith(f"mlflow models serve --env-manager local -m models:/wmt-{pair}@best -p 5001")
    path, file = tmp_path / "page.html", tmp_path / beside.beside
    path.write_text(page.html([Heading("Model", 1), beside, why]), encoding="utf-8")
    assert page.packed(beside) not in path.read_text(encoding="utf-8")
    context = browser.new_context()
    shown = context.new_page()
    shown.goto(path.as_uri())
    shown.get_by_role("button", name="Load the model").click()
    shown.get_by_text(f"{beside.beside} is not beside this page").wait_for()
    file.parent.mkdir()
    file.write_text(f'arrived("{page.packed(beside)}")\n', encoding="utf-8")
    shown.reload()
    shown.get_by_role("button", name="Load the model").click()
    shown.locator(".translation[data-lines]").wait_for(timeout=PATIENCE)
    context.close()


def test_weights_are_rounded_by_at_most_half_a_step() -> None:
    weights = torch.randn(5, 7) * torch.tensor([[1e-3], [1.0], [50.0], [0.0], [1.0]])
    rounded = dequantized({"w": weights, "b": weights[0]})
    steps = weights.abs().amax(1, keepdim=True) / 127
    assert ((rounded["w"] - weights).abs() <= steps * 0.5001).all()
    assert torch.equal(rounded["b"], weights[0])
