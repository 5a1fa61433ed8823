"""The library that translates: batches, long lines, attention."""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import wmt
from model_folders import WORDS, folder_of, parser_of
from refusals import check_refusal
from text_lines import LINES

from nmt.ids import EOS
from nmt.inference import attention_maps
from nmt.inference.alignment import alignment
from nmt.inference.engine import Piece
from nmt.inference.loading import LoadedModel
from nmt.inference.search import Hypothesis, length_penalty
from nmt.inference.translator import Translator
from nmt.model import positional_encoding
from nmt.packing import pack_tensor
from nmt.text.sentences import split_sentences


def batch_sizes(ready: Translator, lines: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The source positions of the batches that the engine gets, for one line many times."""
    sizes: list[int] = []

    def translated(batch: Sequence[Piece], *_: Any) -> list[list[Hypothesis]]:
        sizes.append(sum(len(piece.ids) for piece in batch))
        return [[Hypothesis([], 0.0, 0.0)] for _ in batch]

    monkeypatch.setattr(ready.engine, "run", translated)
    assert len(list(ready.translate([LINES[0]] * lines))) == lines
    return sizes


@pytest.mark.parametrize("workers", [1, 4])
def test_a_small_file_makes_two_batches(model: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of workers."""
    ready = Translator(model)
    ready.engine.workers = workers
    length = len(ready.pieces(LINES[0])[0].ids)
    for lines, made in ((80, 2), (1024 // length, 2), (256 // length, 1)):  # The last one is hardly any work.
        sizes = batch_sizes(ready, lines, monkeypatch)
        assert len(sizes) == made
        assert made == 1 or max(sizes) <= 0.6 * sum(sizes)


def test_a_gpu_gets_larger_batches(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedModel(model)
    for device, largest in (("cpu", 1024), ("cuda", 8192)):
        loaded.device = torch.device(device)
        sizes = batch_sizes(Translator(loaded), 2000, monkeypatch)
        assert 0.9 * largest < max(sizes) <= largest, "a beam of 4"


def test_bfloat16_does_not_round_the_positions(model: Path) -> None:
    embedding = LoadedModel(model, precision="bfloat16").transformer.embedding
    ids = torch.arange(4, 60)
    exact = embedding.table[ids].float() * 4 + positional_encoding(56, 16)
    assert torch.equal(embedding(pack_tensor(ids[None])), exact.bfloat16())


def test_a_search_in_another_thread_does_not_change_attention(model: Path) -> None:
    """As `--json` looks at one window's lines while workers search the next."""
    member = LoadedModel(model).transformer
    source, target = [5, 6, 7, EOS], [8, 9]
    expected = attention_maps.attention_of(member, source, target)
    other = torch.tensor([[5, 6, 7, 8, 9, EOS]])

    def search(*_: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(member.encode, pack_tensor(other, member.settings.h)).result()

    handle = member.decoder[0].register_forward_pre_hook(search)
    weights = attention_maps.attention_of(member, source, target)
    handle.remove()
    assert all(torch.equal(weights[name], expected[name]) for name in attention_maps.ATTENTIONS)


def test_the_library_refuses_nothing_that_fits_and_splits_what_does_not(model: Path) -> None:
    whole = Translator(model)
    long = "the old man sees a dog. He did not see it. She sleeps well."
    parted = Translator(whole.model, longest=12)
    assert len(whole.pieces(long)) == 1
    assert len(parted.pieces(long)) == 3
    alone = list(parted.translate(["the old man sees a dog.", "He did not see it.", "She sleeps well."]))
    (translation,) = parted.translations([long])
    assert translation.texts == [" ".join(alone)]
    (best,) = translation.hypotheses
    subwords = len(best.ids) + 3  # An EOS for each sentence.
    assert best.score == pytest.approx(best.log_probability / length_penalty(subwords, parted.settings.alpha))
    wordless = f"?! {'.' * 99}"
    (translation,) = Translator(whole.model, longest=12, split="sentences").translations([f"{wordless} {long[-16:]}"])
    assert [piece.text for piece in translation.pieces] == [wordless, "She sleeps well."]
    assert translation.texts == [f"{wordless} {alone[2]}"], "copied, as a line of its own is"
    check_refusal(r"line 2: the line `the old .* at most 12", list, parted.translate(["we do", long.replace(".", "")]))


def test_words_are_aligned_by_the_attention_to_all_their_subwords(parser: Path) -> None:
    translator = Translator(parser)
    (piece,) = translator.pieces("unbelievably She sleeps well")
    ids = translator.model.target_subwords.encode("(S XX XX )S")
    model = translator.model

    def weights() -> Any:
        return alignment([model.transformer], piece.ids, ids).numpy()

    attention = model.word_attention(ids, piece.text, weights)
    of_words, whole = attention(), alignment([translator.model.transformer], piece.ids, ids)[:4]
    heads = attention_maps.attention_of(translator.model.transformer, piece.ids, ids)["cross"][-1]
    assert torch.equal(whole, heads.mean(0)[:4])
    parts = len(translator.model.subwords.encode("unbelievably"))
    assert parts > 1
    assert of_words[:, 0] == pytest.approx(whole[:, :parts].sum(1).numpy())
    assert of_words[:, 1:] == pytest.approx(whole[:, parts:-1].numpy())
    assert LoadedModel(folder_of(parser.parent / "text")).word_attention([5], piece.text, weights) is None
    (piece,) = translator.pieces("the\u00a0dog sees")
    assert model.word_attention(ids, piece.text, weights) is not None, "treebanks' words have such spaces"


def test_learned_positions_bound_the_line(tmp_path: Path) -> None:
    ready = Translator(folder_of(tmp_path / "learned", positions="learned", max_positions=24))
    assert ready.longest == 13
    check_refusal("", list, ready.translate(["dog " * 14]))
    sinusoids = folder_of(tmp_path / "sinusoids", seed=2)
    assert Translator([sinusoids, tmp_path / "learned"]).longest == 13, "the shortest table of an ensemble"
    check_refusal("--max-extra at most 22", Translator, ready.model, settings=ready.settings.changed({"max_extra": 23}))
    parser = Translator(parser_of(tmp_path / "parser", "vinyals", positions="learned", max_positions=24), longest=5)
    check_refusal("12 subwords, and at most 5 are parsed at once: give --longest 12, or le", parser.pieces, "dog " * 12)
    check_refusal("14 subwords, and at most 5 are parsed at once: shorten it, or leave it", parser.pieces, "dog " * 14)


def test_sentences_are_split_where_they_end() -> None:
    text = 'Mr. Smith left at 3.5 p.m. today.|"Why?" he asked.|(No one knew.)|It was 7.|October e.g. a Monday!|Ok'
    assert split_sentences(text.replace("|", " "), "en") == text.split("|")
    text = "Did he?|No.|He paid 2.50.|He saw v2.0.|See No. 5 of Dipl.-Ing. J.-C. Smith, Ph.D. X, at www.example.com.|Ok"
    assert split_sentences(text.replace("|", " "), "en") == text.split("|")
    assert split_sentences("no end", "xx") == ["no end"]
    chinese = ["我很好。", "你呢？", "他说：「走吧！」", "好。。。"]
    assert split_sentences("".join(chinese), "zh_Hans") == chinese
    for text in ("मैं ठीक हूँ।|आप कैसे हैं?", "كيف حالك؟|أنا بخير."):
        assert split_sentences(text.replace("|", " "), "hi") == text.split("|")
    # In linear time: this would take an hour if every character could begin a word.
    assert split_sentences(f"{'a' * 300_000} b. C", "en") == [f"{'a' * 300_000} b.", "C"]


def test_an_ensemble_is_of_one_pair_and_vocabulary(model: Path, tmp_path: Path) -> None:
    other = folder_of(tmp_path / "second", seed=2)
    lines = [LINES[0]] * 3
    one, two, both = (Translator(folders).translations(lines) for folders in (model, other, [str(model), other]))
    log_probabilities = [next(translations).hypotheses[0].log_probability for translations in (one, two, both)]
    assert len(set(log_probabilities)) == 3
    for strange in (folder_of(tmp_path / "french", target="fr"), folder_of(tmp_path / "upper", words=WORDS.upper())):
        check_refusal("has another pair, tokenizer or vocabulary than", Translator, [model, strange])
    check_refusal("", Translator, [])


def test_subwords_of_another_parser_are_told_with_both_numbers(parser: Path) -> None:
    config = parser / "config.yaml"
    config.write_text(config.read_text().replace("target_vocabulary: 64", "target_vocabulary: 32"))
    check_refusal("the model has 64 and 32 rows for source and target, its subwords 64 and 64", LoadedModel, parser)


def test_lines_are_a_list_not_a_string(model: Path) -> None:
    assert len(list(Translator(str(model), "cpu").translate(LINES))) == len(LINES)
    check_refusal("not one string", list, Translator(model).translate("a line"))


def test_attention_of_every_layer_and_head(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention"
    command = ["attention", str(model), "--source", "we do $ !", "--output", str(out)]
    assert wmt(*command, "--target", "She sleeps") == 0
    with np.load(out / "attention.npz") as arrays:
        assert {*arrays} == {"source", "target", *attention_maps.ATTENTIONS}
        source, target = len(arrays["source"]), len(arrays["target"])
        assert arrays["encoder"].shape == (2, 2, source, source)
        assert arrays["decoder"].shape == (2, 2, target, target)
        assert arrays["cross"].shape == (2, 2, target, source)
        for name in attention_maps.ATTENTIONS:
            assert np.allclose(arrays[name].sum(-1), 1.0, atol=1e-5)
        assert not np.triu(arrays["decoder"][0, 0], 1).any()
    pictures = sorted(out.glob("*.svg"))
    assert len(pictures) == 3
    assert all(picture.read_text(encoding="utf-8").rstrip().endswith("</svg>") for picture in pictures)
    assert wmt(*command) == 2, "it exists"
    shutil.rmtree(out)
    assert wmt(*command) == 0
    with np.load(out / "attention.npz") as arrays:
        assert arrays["target"][0] == "<s>"
        assert list(arrays["source"])[-1] == "</s>"


def test_the_pictured_layer_tells_words_apart(tmp_path: Path) -> None:
    """The keys of `decoder` begin with BOS, and those of the others end with EOS: neither is a word."""
    weights, kinds = {}, {"cross": 2, "decoder": 0, "encoder": 2}
    for name, end in kinds.items():
        on_end, on_words = torch.zeros(3, 3), torch.eye(3)
        on_end[:, end], on_words[end] = 1.0, 0.0
        weights[name] = torch.stack((on_end, on_words))[:, None]
    attention_maps.write_files(attention_maps.Attention(["a", "b", "</s>"], ["<s>", "x", "y"], weights), tmp_path)
    assert sorted(path.stem for path in tmp_path.glob("*.svg")) == [f"{name}-layer-2" for name in kinds]


@torch.no_grad()
def test_attention_is_what_the_layers_use(model: Path) -> None:
    built = LoadedModel(model).transformer
    source, target = [5, 6, 7, 2], [8, 9]
    weights = attention_maps.attention_of(built, source, target)["encoder"][0]
    packed = pack_tensor(torch.tensor([source]), built.settings.h)
    x = built.embedding(packed)
    module = built.encoder[0].self_attention
    V = module.W_V(x).unflatten(1, (2, 8)).transpose(0, 1)
    expected = module(x, x, packed, packed, packed.masks)
    assert torch.allclose(module.W_O((weights @ V).transpose(0, 1).flatten(1)), expected, atol=1e-5)
