"""The model beside a slow version of the authors' code, and the encoder alone."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentences_made_up import made_up
from torch.nn import functional as F

from multint import Start
from multint.paper.experiment import Team
from multint.paper.obtain import DataError
from multint.paper.skipthought import text
from multint.paper.skipthought.data import Batches
from multint.paper.skipthought.encoder import Encoder, described, load
from multint.paper.skipthought.model import SkipThought

WORDS = tuple(f"w{k}" for k in range(20))
START = Start(1.0, 1.0, 1.0, 0.0, r_w=0.1, orthogonal=True)


def build(integration="general", bidirectional=False, width=6, hidden=8, reset_after=True):
    torch.manual_seed(3)
    how = {"integration": integration, "bidirectional": bidirectional, "start": START, "reset_after": reset_after}
    model = SkipThought(WORDS, width, hidden, **how)
    for parameter in model.parameters():  # a trained model has no zeros
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batches(**how):
    return Batches(made_up(), len(WORDS) + 2, 4, seed=1, epoch=0, team=Team(), **how)


# ---- the authors' code, slowly ----


def gru(layer, wx, h):
    """One step of their GRU, reset after the product, with MI where the layer has it. Their u is the share of the old state."""
    U = layer.weight_hh_l0
    uh = h @ U.T
    r_x, z_x, n_x = wx.chunk(3, -1)
    r_h, z_h, n_h = uh.chunk(3, -1)

    def gate(name, x, z):
        which = slice(*{"r": (0, 8), "z": (8, 16), "n": (16, 24)}[name])
        b = layer.bias_l0[which]
        if not hasattr(layer, "alpha_l0"):
            return x + z + b
        alpha, beta1, beta2 = (getattr(layer, f"{one}_l0")[which] for one in ("alpha", "beta1", "beta2"))
        return alpha * x * z + beta1 * z + beta2 * x + b

    r = gate("r", r_x, r_h).sigmoid()
    u = 1 - gate("z", z_x, z_h).sigmoid()
    candidate = gate("n", n_x, r * n_h).tanh()
    return u * h + (1 - u) * candidate


def slowly(model, batch):
    """Sentence by sentence, word by word."""
    table = model.encoder.embedding.weight
    total = 0.0
    for column in range(batch.x.shape[1]):
        h = torch.zeros(8)
        for word in batch.x[: int(batch.last) + 1, column]:
            h = gru(model.encoder.core, table[word] @ model.encoder.core.weight_ih_l0.T, h)
        for decoder, goal in ((model.after, batch.after), (model.before, batch.before)):
            state, given = h, torch.zeros(6)
            words = goal.words[:, column].tolist()
            for word in words[: words.index(0) + 1]:
                state = gru(decoder, given @ decoder.weight_ih_l0.T, state)
                total = total + F.cross_entropy((state @ model.out.weight.T + model.out.bias)[None], torch.tensor([word]))
                given = table[word]
    return total


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("integration", ["additive", "general"])
def test_loss_and_gradients_are_those_of_the_slow_version(integration, fixed):
    model, batch = build(integration), batches(fixed=fixed, even=fixed)[2]
    parts = list(model.parameters())
    ours, theirs = model(batch), slowly(model, batch)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    for one, other in zip(torch.autograd.grad(ours, parts), torch.autograd.grad(theirs, parts), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_paper_s_model_has_the_parameters_of_the_authors():
    with torch.device("meta"):
        sizes = [
            sum(
                p.numel()
                for p in SkipThought([""] * 19_998, 620, 2400, integration=form, start=START).parameters()
                if p.requires_grad
            )
            for form in ("additive", "general")
        ]
    assert sizes == [125_673_600, 125_695_200]


def test_weights_begin_as_in_the_authors_code():
    torch.manual_seed(0)
    model = SkipThought(WORDS * 10, 60, 40, integration="general", start=START)
    for layer in (model.encoder.core, model.after, model.before):
        for gate in layer.weight_hh_l0.chunk(3):
            torch.testing.assert_close(gate @ gate.T, torch.eye(40), rtol=0, atol=1e-5)
        assert layer.weight_ih_l0.abs().max() <= 0.1 < layer.weight_ih_l0.abs().max() + 0.01
        assert not layer.bias_l0.any() and not layer.bias_hn_l0.any() and "bias_hn_l0" not in dict(layer.named_parameters())
    for weight in (model.encoder.embedding.weight, model.out.weight):
        assert weight.abs().max() <= 0.1 < weight.abs().max() + 0.01
    assert not model.out.bias.any() and (model.encoder.core.alpha_l0 == 1).all()


def test_two_directions_read_the_sentence_from_both_ends():
    model, batch = build(bidirectional=True), batches()[2]
    found = model.encoder(batch.x, batch.last)
    assert found.shape == (batch.x.shape[1], 8)
    backwards = model.encoder(batch.x.flip(0), batch.last)
    assert not torch.allclose(found[:, 4:], backwards[:, 4:])
    core = model.encoder.core
    h, _ = core(model.encoder.embedding(batch.x))
    torch.testing.assert_close(found, torch.cat([h[-1, :, :4], h[0, :, 4:]], 1))
    with pytest.raises(ValueError, match="an even number of units, got 7"):
        Encoder(WORDS, 6, 7, bidirectional=True)


# ---- the encoder alone ----


@pytest.fixture
def encoder():
    return build().encoder.eval()


def test_a_sentence_has_the_same_vector_alone_and_among_others(encoder):
    sentences = [["w1", "w2"], ["w3"], ["w1", "w2"], ["w4", "w5", "w6"], ["nowhere", "w2"]]
    together = encoder.encode(sentences)
    for one, vector in zip(sentences, together, strict=True):
        torch.testing.assert_close(encoder.encode([one])[0], vector, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
    assert torch.equal(together[0], together[2]) and not torch.allclose(together[0], together[4])


def test_the_end_is_read_where_it_is_asked_for(encoder):
    ids = torch.tensor([[3], [4], [0]])
    torch.testing.assert_close(encoder.encode([["w1", "w2"]], eos=True, normalise=False), encoder(ids))
    torch.testing.assert_close(encoder.encode([["w1", "w2"]], normalise=False), encoder(ids[:2]))


def test_texts_are_split_and_words_found_in_lower_case(encoder, monkeypatch):
    monkeypatch.setattr(text, "words", str.split)
    torch.testing.assert_close(encoder.encode(["W1 w2"]), encoder.encode([["w1", "w2"]]))
    assert encoder.unknown([["W1", "nowhere", "w2"]]) == (1, 3)


def test_a_sentence_without_words_has_the_vector_zero(encoder):
    assert not encoder.encode([[]]).any()
    assert encoder.encode([[]], eos=True).any()
    assert encoder.encode([]).shape == (0, 8)


def test_progress_counts_the_sentences_done(encoder):
    told = []
    encoder.encode([["w1"] * (1 + k % 3) for k in range(9)], progress=told.append)
    assert told == [3, 6, 9]


def test_words_of_other_vectors_are_mapped_into_the_encoder(encoder):
    table = encoder.embedding.weight.detach()
    slope, shift = torch.randn(6, 4), torch.randn(4)
    other = {word: (table[place] @ slope + shift).numpy() for word, place in encoder.places.items()}
    hidden = torch.randn(6)
    other["Outside"] = (hidden @ slope + shift).numpy()
    del other["w7"]
    before = encoder.encode([["outside"], ["Outside"]])
    assert encoder.expand(other) == 19
    # four numbers cannot hold six: the new vector is the one of the words' own that comes nearest
    own = torch.stack([table[place] for word, place in encoder.places.items() if word != "w7"]).double()
    theirs = torch.stack([torch.as_tensor(other[word]) for word in encoder.places if word != "w7"]).double()
    fit = torch.linalg.lstsq(F.pad(theirs, (0, 1), value=1.0), own).solution
    expected = F.pad(torch.as_tensor(other["Outside"]).double(), (0, 1), value=1.0) @ fit
    torch.testing.assert_close(encoder.further["Outside"].double(), expected, rtol=1e-4, atol=1e-4)
    after = encoder.encode([["outside"], ["Outside"]])
    assert torch.equal(after[0], before[0]) and not torch.allclose(after[1], before[1])
    assert encoder.unknown([["Outside", "outside", "w7"]]) == (1, 3)
    with pytest.raises(DataError, match="no word of the vocabulary"):
        encoder.expand({"andere": np.zeros(4)})


def written(folder, model):
    how = {"width": 6, "hidden": 8, "integration": "general", "bidirectional": False, "reset_after": True}
    about = {"model": {"words": WORDS, "encoder": {**how, "start": {"r_w": 0.1, "orthogonal": True}}}}
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps(about))
    save_file(model.state_dict(), folder / "weights.safetensors")
    return folder


def test_an_encoder_is_loaded_in_three_lines_without_the_decoders(tmp_path):
    model = build()
    found = load(written(tmp_path / "model", model))
    assert torch.equal(found.encode([["w1", "w2"]]), model.encoder.eval().encode([["w1", "w2"]]))
    assert not found.training and isinstance(found, Encoder)


def test_loading_an_encoder_needs_nothing_that_trains():
    import subprocess

    code = "import sys, multint.paper.skipthought.encoder; print(*sorted(m for m in sys.modules if m.startswith('multint.paper')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {
        "multint.paper",
        "multint.paper.obtain",
        "multint.paper.skipthought",
        "multint.paper.skipthought.encoder",
        "multint.paper.skipthought.text",
        "multint.paper.sources",
    }


def test_a_folder_that_holds_no_encoder_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere holds no sentence encoder"):
        load(tmp_path / "nowhere")
    folder = written(tmp_path / "model", build())
    (folder / "model.json").write_text('{"model": {"symbols": "abc"}}')
    with pytest.raises(DataError, match="model holds no sentence encoder: 'encoder'"):
        load(folder)


def test_a_description_builds_the_same_shapes():
    how = {"width": 6, "hidden": 8, "integration": "additive", "start": START.__dict__}
    assert described({"words": WORDS, "encoder": how}).core.integration == "additive"
    assert replace(START).orthogonal
