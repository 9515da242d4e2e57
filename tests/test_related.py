"""§4: the HMM is an MI-RNN, the second-order and multiplicative RNN contain it, and all are called as torch.nn's layers are."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from multint import MIGRU, MILSTM, MIRNN
from multint.related import (
    MogrifierLSTM,
    MultiplicativeLSTM,
    MultiplicativeRNN,
    SecondOrderRNN,
    hmm_forward,
    hmm_layer,
    hmm_log_likelihood,
    to_multiplicative,
    to_second_order,
)

F64 = torch.float64
MODES = ["plain", "scaled", "log"]


def law(*shape, dtype=F64):
    """Random laws along the last axis."""
    p = torch.rand(shape, dtype=F64) + 0.05
    return (p / p.sum(-1, keepdim=True)).to(dtype)


def random_hmm(m, n, dtype=F64):
    return law(m, m, dtype=dtype).t().contiguous(), law(m, n, dtype=dtype), law(m, dtype=dtype)


def scatter(module):
    """Random values in all parameters, so that none sits at 0 or 1."""
    with torch.no_grad():
        for p in module.parameters():
            p.uniform_(-0.7, 0.7)
    return module


# ---- hidden Markov models ----


def enumerated(u, w, tokens, first):
    """P(x) as the sum over every path of states; ``first`` is the law of the state that emits first."""
    m, total = u.shape[0], 0.0
    for path in itertools.product(range(m), repeat=len(tokens)):
        p = first[path[0]] * w[path[0], tokens[0]]
        for t in range(1, len(tokens)):
            p = p * u[path[t], path[t - 1]] * w[path[t], tokens[t]]
        total = total + p
    return total


@pytest.mark.parametrize("mode", MODES)
def test_hmm_likelihood_equals_the_sum_over_all_paths(mode):
    u, w, h0 = random_hmm(3, 4)
    tokens = torch.randint(4, (5, 2))
    ours = hmm_log_likelihood(hmm_layer(u, w, initial=h0), tokens, mode=mode)
    theirs = torch.stack([enumerated(u, w, tokens[:, k].tolist(), u @ h0) for k in range(2)]).log()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_hmm_with_pi_is_the_textbook_hmm(mode):
    u, w, pi = random_hmm(3, 4)
    tokens = torch.randint(4, (5,))
    layer = hmm_layer(u, w, pi=pi)
    ours = hmm_log_likelihood(layer, tokens, mode=mode)
    torch.testing.assert_close(ours, enumerated(u, w, tokens.tolist(), pi).log(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(tokens)[0][0, :3], pi * w[:, tokens[0]], rtol=1e-12, atol=0.0)
    assert layer(tokens)[0][:, 3].abs().max() == 0  # nothing returns to the state that begins


def log_forward(u, w, tokens, h0):
    """log P(x_1..x_t, h_t) of every step for one sequence, with torch's own logsumexp."""
    log_h, steps = h0.log(), []
    for x in tokens:
        log_h = w[:, x].log() + torch.logsumexp(u.log() + log_h, 1)
        steps.append(log_h)
    return torch.stack(steps)


def test_hmm_modes_agree_with_an_independent_log_space_pass():
    u, w, h0 = random_hmm(5, 7)
    tokens = torch.randint(7, (40, 3), dtype=torch.int32)
    layer = hmm_layer(u, w)
    theirs = torch.stack([log_forward(u, w, tokens[:, k], h0) for k in range(3)], 1)
    plain, scaled, logs = (hmm_forward(layer, tokens, h0, mode) for mode in MODES)
    for ours in (plain.h.log(), scaled.h.log() + scaled.log_likelihood.unsqueeze(-1), logs.h):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for ours in (plain, scaled, logs):
        torch.testing.assert_close(ours.log_likelihood, theirs.logsumexp(-1), rtol=1e-12, atol=1e-12)


def test_hmm_layer_itself_is_the_forward_algorithm():
    u, w, h0 = random_hmm(3, 4)
    tokens = torch.randint(4, (6, 2))
    outputs, _ = hmm_layer(u, w)(tokens, h0.expand(1, 2, 3))
    theirs = torch.stack([log_forward(u, w, tokens[:, k], h0) for k in range(2)], 1)
    torch.testing.assert_close(outputs, theirs.exp(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (F64, 1e-12)])
def test_hmm_scaled_and_log_survive_ten_thousand_steps_where_plain_underflows(dtype, rtol):
    u, w, h0 = random_hmm(3, 50, dtype)
    tokens = torch.randint(50, (10_000, 1))
    layer = hmm_layer(u, w, initial=h0)
    found = []
    for mode in ("scaled", "log"):
        value = hmm_log_likelihood(layer, tokens, mode=mode)
        found.append([value, *torch.autograd.grad(value.sum(), (layer.weight_ih_l0, layer.weight_hh_l0))])
    assert found[0][0].item() < -30_000
    for scaled, logs in zip(*found, strict=True):
        assert scaled.isfinite().all()
        # gradients are sums over 10,000 steps, each rounded
        torch.testing.assert_close(scaled, logs, rtol=50 * rtol, atol=0.0)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=rtol, atol=0.0)
    assert hmm_log_likelihood(layer, tokens[:220], mode="plain").item() == -math.inf
    assert hmm_log_likelihood(layer, tokens[:220]).isfinite().all()


def posterior_counts(u, w, tokens, first):
    """Expected emissions, transitions and first states given one sequence: the textbook's forward-backward, in probabilities."""
    alphas, betas = [first * w[:, tokens[0]]], [torch.ones_like(first)]
    for x in tokens[1:]:
        alphas.append(w[:, x] * (u @ alphas[-1]))
    for x in reversed(tokens[1:]):
        betas.insert(0, u.t() @ (w[:, x] * betas[0]))
    p, emissions, transitions = alphas[-1].sum(), torch.zeros_like(w), torch.zeros_like(u)
    for t, x in enumerate(tokens):
        emissions[:, x] += alphas[t] * betas[t] / p
        if t > 0:
            transitions += (w[:, x] * betas[t]).unsqueeze(1) * u * alphas[t - 1] / p
    return emissions, transitions, alphas[0] * betas[0] / p


@pytest.mark.parametrize("mode", MODES)
def test_hmm_gradients_are_posterior_counts(mode):
    u, w, pi = random_hmm(4, 5)
    u[2, 1], u[3, 1] = 0.0, u[3, 1] + u[2, 1]  # a transition that cannot be
    tokens = torch.randint(5, (9, 3))
    layer = hmm_layer(u, w, pi=pi)
    hmm_log_likelihood(layer, tokens, mode=mode).sum().backward()
    counts = [posterior_counts(u, w, tokens[:, k].tolist(), pi) for k in range(3)]
    emissions, transitions, firsts = (sum(parts) for parts in zip(*counts, strict=True))
    ours_w, ours_u = w * layer.weight_ih_l0.grad[:4], layer.weight_hh_l0.detach() * layer.weight_hh_l0.grad
    torch.testing.assert_close(ours_w, emissions, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours_u[:4, :4], transitions, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours_u[:4, 4], firsts, rtol=1e-10, atol=1e-12)
    assert abs(ours_u.sum().item() - 27) < 1e-9  # 9 moves, the one into the first state included, in 3 sequences


@pytest.mark.parametrize("mode", MODES)
def test_hmm_gives_an_impossible_sequence_probability_zero_and_no_nan(mode):
    u, w = torch.eye(2, dtype=F64), torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=F64)
    layer = hmm_layer(u, w, initial=torch.tensor([1.0, 0.0], dtype=F64))
    value = hmm_log_likelihood(layer, torch.tensor([[0, 0], [1, 0]]), mode=mode)
    assert value.tolist() == [-math.inf, 0.0]
    value[1].backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_hmm_lengths_end_padded_sequences():
    u, w, h0 = random_hmm(3, 4)
    layer, tokens = hmm_layer(u, w, initial=h0), torch.randint(4, (7, 3))
    ours = hmm_log_likelihood(layer, tokens, lengths=torch.tensor([7, 2, 4]))
    theirs = torch.stack([hmm_log_likelihood(layer, tokens[:t, k]) for k, t in enumerate((7, 2, 4))])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"1 to 7 steps .* got \[7, 0, 4\]"):
        hmm_log_likelihood(layer, tokens, lengths=torch.tensor([7, 0, 4]))


def test_hmm_initial_may_differ_from_row_to_row():
    u, w, _ = random_hmm(3, 4)
    layer, tokens, laws = hmm_layer(u, w), torch.randint(4, (6, 2)), law(2, 3)
    ours = hmm_log_likelihood(layer, tokens, laws)
    theirs = torch.stack([hmm_log_likelihood(layer, tokens[:, k], laws[k]) for k in range(2)])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_hmm_layer_names_what_is_not_stochastic():
    u, w, h0 = random_hmm(3, 4)
    with pytest.raises(ValueError, match="every column of transition must sum to 1, but column 1 sums to 1.5"):
        hmm_layer(u + 0.5 * torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0]]), w)
    with pytest.raises(ValueError, match="every row of emission must sum to 1, but row 2 sums to 0"):
        hmm_layer(u, w * torch.tensor([[1.0], [1.0], [0.0]]))
    bad = w.clone()
    bad[1, :2] = torch.tensor([-0.25, w[1, :2].sum() + 0.25])
    with pytest.raises(ValueError, match=r"emission holds probabilities, but row 1 has the negative entry -0\.25"):
        hmm_layer(u, bad)
    with pytest.raises(ValueError, match="column 0 sums to nan"):
        hmm_layer(u * math.nan, w)
    with pytest.raises(ValueError, match="every row of pi must sum to 1, but row 0 sums to 2"):
        hmm_layer(u, w, pi=2 * h0)


def test_hmm_layer_names_wrong_shapes():
    u, w, h0 = random_hmm(3, 4)
    with pytest.raises(ValueError, match=r"transition must be a square matrix \(m, m\), got shape \(2, 3\)"):
        hmm_layer(u[:2], w)
    with pytest.raises(ValueError, match=r"a row for each of the 3 states of transition, got shape \(2, 4\)"):
        hmm_layer(u, w[:2])
    with pytest.raises(ValueError, match=r"initial must give a probability for each of 3 states, got shape \(2,\)"):
        hmm_layer(u, w, initial=h0[:2])
    with pytest.raises(ValueError, match="not both"):
        hmm_layer(u, w, initial=h0, pi=h0)


def test_hmm_forward_names_wrong_use():
    u, w, h0 = random_hmm(3, 4)
    layer, tokens = hmm_layer(u, w), torch.randint(4, (6, 2))
    with pytest.raises(ValueError, match="Unknown mode 'fast'. Select from 'plain', 'scaled' or 'log'"):
        hmm_log_likelihood(layer, tokens, h0, mode="fast")
    with pytest.raises(ValueError, match="holds no law to begin with: pass initial="):
        hmm_log_likelihood(layer, tokens)
    with pytest.raises(ValueError, match=r"initial must be of shape \(3,\) or \(2, 3\), got \(4,\)"):
        hmm_log_likelihood(layer, tokens, law(4))
    with pytest.raises(ValueError, match="integration='simple', got 'general'; build it with hmm_layer"):
        hmm_log_likelihood(MIRNN(4, 3, dtype=F64), tokens, h0)
    for mode in MODES:
        with pytest.raises(IndexError, match="takes tokens 0 to 3, got values from 4 to 9"):
            hmm_log_likelihood(layer, torch.tensor([[4], [9]]), h0, mode=mode)


# ---- the relatives against their equations, step by step ----


def lstm_step(total, c):
    i, f, z, o = total.chunk(4, -1)
    c = i.sigmoid() * z.tanh() + f.sigmoid() * c
    return o.sigmoid() * c.tanh(), c


def second_order(p, x, h, c):
    s = torch.stack([((x @ p.weight_t_l0[i]) * h).sum(-1) for i in range(h.shape[-1])], -1)
    first = x @ p.weight_ih_l0.t() + h @ p.weight_hh_l0.t() if p.first_order else 0.0
    return torch.tanh(s + first + p.bias_l0), c


def multiplicative(p, x, h, c):
    f = (x @ p.weight_fx_l0.t()) * (h @ p.weight_fh_l0.t())
    first = h @ p.weight_hh_l0.t() if p.recurrent else 0.0
    return torch.tanh(f @ p.weight_hf_l0.t() + x @ p.weight_ih_l0.t() + first + p.bias_l0), c


def multiplicative_lstm(p, x, h, c):
    m = (x @ p.weight_mx_l0.t()) * (h @ p.weight_mh_l0.t())
    return lstm_step(x @ p.weight_ih_l0.t() + m @ p.weight_hh_l0.t() + p.bias_l0, c)


def mogrifier(p, x, h, c):
    for i in range(1, p.rounds + 1):
        name = f"weight_{'q' if i % 2 else 'r'}{i}"
        q = getattr(p, name + "_l0") if p.rank is None else getattr(p, name + "_up_l0") @ getattr(p, name + "_down_l0")
        if i % 2:
            x = 2 * torch.sigmoid(h @ q.t()) * x
        else:
            h = 2 * torch.sigmoid(x @ q.t()) * h
    return lstm_step(x @ p.weight_ih_l0.t() + h @ p.weight_hh_l0.t() + p.bias_l0, c)


OBVIOUS = [
    (SecondOrderRNN, {}, second_order),
    (SecondOrderRNN, {"first_order": False}, second_order),
    (MultiplicativeRNN, {}, multiplicative),
    (MultiplicativeRNN, {"factors": 4, "recurrent": True}, multiplicative),
    (MultiplicativeLSTM, {}, multiplicative_lstm),
    (MogrifierLSTM, {"rounds": 1}, mogrifier),
    (MogrifierLSTM, {}, mogrifier),
    (MogrifierLSTM, {"rounds": 4, "rank": 2}, mogrifier),
]
RELATIVES = [SecondOrderRNN, MultiplicativeRNN, MultiplicativeLSTM, MogrifierLSTM]


def hidden(layer, n, rows=None):
    """A random hx, a pair for the LSTMs."""
    rows = layer.num_layers * (1 + layer.bidirectional) if rows is None else rows
    h, c = torch.randn(2, rows, n, layer.hidden_size, dtype=F64)
    return (h, c) if "LSTM" in type(layer).__name__ else h


def parts(hx):
    return hx if isinstance(hx, tuple) else (hx,)


def pick(hx, *index):
    return tuple(p[index] for p in hx) if isinstance(hx, tuple) else hx[index]


def close(a, b, tol=1e-12):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("kind, extra, step", OBVIOUS)
def test_relative_equals_its_equations_step_by_step(kind, extra, step):
    layer = scatter(kind(5, 7, dtype=F64, **extra))
    x, hx = torch.randn(6, 3, 5, dtype=F64), hidden(layer, 3)
    outputs, last = layer(x, hx)
    h, c = parts(hx)[0][0], parts(hx)[-1][0]
    for t in range(6):
        h, c = step(layer, x[t], h, c)
        close(outputs[t], h)
    close(parts(last)[0][0], h)
    close(parts(last)[-1][0], c if len(parts(last)) == 2 else h)


@pytest.mark.parametrize("kind, extra, step", OBVIOUS)
def test_relative_reads_tokens_as_one_hot_rows_with_equal_gradients(kind, extra, step):
    layer = scatter(kind(5, 7, num_layers=2, dtype=F64, **extra))
    tokens, hx = torch.randint(5, (6, 3)), hidden(layer, 3)
    found = []
    for x in (tokens, tokens.to(torch.int32), F.one_hot(tokens, 5).to(F64)):
        outputs, last = layer(x, hx)
        loss = (outputs * torch.arange(outputs.numel()).reshape(outputs.shape).sin()).sum() + sum(p.sum() for p in parts(last))
        found.append([outputs, *parts(last), *torch.autograd.grad(loss, list(layer.parameters()))])
    for ours, small, theirs in zip(*found, strict=True):
        close(ours, theirs)
        close(small, theirs)


class _Shapes(TorchDispatchMode):
    """Records the shape of every tensor an operation makes."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.seen |= {tuple(r.shape) for r in (result if isinstance(result, (tuple, list)) else [result]) if hasattr(r, "shape")}
        return result


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_never_builds_the_one_hot(kind):
    layer = kind(101, 3)
    with _Shapes() as shapes:
        layer(torch.randint(101, (7, 5)))
    assert not {s for s in shapes.seen if s[-1:] == (101,) and s[:-1] in ((7, 5), (5,), (35,))}


def test_mogrifier_of_zero_rounds_is_the_lstm():
    ours, theirs = scatter(MogrifierLSTM(5, 7, 2, rounds=0, dtype=F64)), nn.LSTM(5, 7, 2, dtype=F64)
    values = {name: value for name, value in ours.state_dict().items() if name.startswith("weight")}
    for k in range(2):
        values |= {f"bias_ih_l{k}": ours.state_dict()[f"bias_l{k}"], f"bias_hh_l{k}": torch.zeros(28, dtype=F64)}
    theirs.load_state_dict(values)
    x, hx = torch.randn(6, 3, 5, dtype=F64), hidden(ours, 3)
    close(ours(x, hx)[0], theirs(x, hx)[0])


@pytest.mark.parametrize("kind", [SecondOrderRNN, MultiplicativeRNN])
@pytest.mark.parametrize("nonlinearity", ["relu", "identity"])
def test_relative_takes_the_nonlinearity_it_is_given(kind, nonlinearity):
    layer, tanh = kind(5, 7, nonlinearity=nonlinearity, dtype=F64), kind(5, 7, dtype=F64)
    tanh.load_state_dict(layer.state_dict())
    x, hx = torch.randn(1, 3, 5, dtype=F64), torch.randn(1, 3, 7, dtype=F64)
    before = torch.atanh(tanh(x, hx)[0])
    close(layer(x, hx)[0], before.relu() if nonlinearity == "relu" else before, 1e-9)
    with pytest.raises(ValueError, match="Unknown nonlinearity 'sine'"):
        kind(5, 7, nonlinearity="sine")


# ---- the relatives as torch.nn's layers ----


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_has_the_shapes_of_torch_nn(kind):
    layer = scatter(kind(5, 7, num_layers=2, bidirectional=True, dtype=F64))
    theirs = (nn.LSTM if "LSTM" in kind.__name__ else nn.RNN)(5, 7, num_layers=2, bidirectional=True, dtype=F64)
    x, hx = torch.randn(6, 3, 5, dtype=F64), hidden(layer, 3)
    for given, state in ((x, None), (x, hx), (x[:, 0], None), (x[:, 0], pick(hx, slice(None), 0))):
        ours, expected = layer(given, state), theirs(given, state)
        assert ours[0].shape == expected[0].shape
        assert [p.shape for p in parts(ours[1])] == [p.shape for p in parts(expected[1])]


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_unbatched_and_batch_first_equal_the_batched_call(kind):
    layer = scatter(kind(5, 7, num_layers=2, bidirectional=True, dtype=F64))
    first = kind(5, 7, num_layers=2, bidirectional=True, batch_first=True, dtype=F64)
    first.load_state_dict(layer.state_dict())
    x, hx = torch.randn(6, 3, 5, dtype=F64), hidden(layer, 3)
    outputs, last = layer(x, hx)
    close(first(x.transpose(0, 1), hx)[0], outputs.transpose(0, 1))
    alone, alone_last = layer(x[:, 1], pick(hx, slice(None), 1))
    close(alone, outputs[:, 1])
    for a, b in zip(parts(alone_last), parts(last), strict=True):
        close(a, b[:, 1])


@pytest.mark.parametrize("kind", RELATIVES)
@pytest.mark.parametrize("tokens", [False, True])
def test_relative_packed_rows_equal_rows_alone(kind, tokens):
    layer, lengths = scatter(kind(5, 7, num_layers=2, bidirectional=True, dtype=F64)), torch.tensor([2, 6, 3])
    x = torch.randint(5, (6, 3)) if tokens else torch.randn(6, 3, 5, dtype=F64)
    hx = hidden(layer, 3)
    packed, last = layer(pack_padded_sequence(x, lengths, enforce_sorted=False), hx)
    outputs, _ = pad_packed_sequence(packed)
    for k, t in enumerate(lengths.tolist()):
        alone, alone_last = layer(x[:t, k], pick(hx, slice(None), k))
        close(outputs[:t, k], alone)
        for a, b in zip(parts(last), parts(alone_last), strict=True):
            close(a[:, k], b)


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_resets_begin_anew_from_the_learned_state(kind):
    layer = scatter(kind(5, 7, learn_state=True, dtype=F64))
    x, resets = torch.randn(6, 2, 5, dtype=F64), torch.zeros(6, 2, dtype=torch.bool)
    resets[4, 0] = True
    outputs, _ = layer(x, hidden(layer, 2), resets=resets)
    close(outputs[4:, 0], layer(x[4:, 0])[0])
    assert {"h0", "c0"} & set(layer.state_dict()) == ({"h0", "c0"} if "LSTM" in kind.__name__ else {"h0"})


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_zoneout_and_dropout_act(kind):
    x = torch.randn(6, 2, 5, dtype=F64)
    frozen = scatter(kind(5, 7, zoneout=1.0, dtype=F64))
    hx = hidden(frozen, 2)
    close(frozen(x, hx)[0], parts(hx)[0].expand(6, 2, 7))
    half = scatter(kind(5, 7, zoneout=0.5, dtype=F64))
    plain = kind(5, 7, dtype=F64)
    plain.load_state_dict(half.state_dict())
    if "LSTM" not in kind.__name__:  # in evaluation the expectation: half the old state, half the new
        close(half.eval()(x[:1], hx)[0], 0.5 * hx + 0.5 * plain(x[:1], hx)[0])
    dropping = kind(5, 7, num_layers=2, dropout=0.5, dtype=F64)
    assert not torch.equal(dropping(x)[0], dropping(x)[0])
    assert torch.equal(dropping.eval()(x)[0], dropping(x)[0])
    with pytest.warns(UserWarning, match="expects num_layers greater than 1"):
        kind(5, 7, dropout=0.5)


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_state_dict_goes_round_and_a_torch_nn_one_is_refused(kind):
    a, b = (scatter(kind(5, 7, num_layers=2, bidirectional=True, learn_state=True)) for _ in range(2))
    b.load_state_dict(a.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    theirs = (nn.LSTM if "LSTM" in kind.__name__ else nn.RNN)(5, 7).state_dict()
    given = dict(theirs)
    with pytest.raises(RuntimeError, match=r"(?s)Missing key\(s\).*Unexpected key\(s\).*bias_ih_l0"):
        kind(5, 7).load_state_dict(given)
    assert list(given) == list(theirs)


def test_relative_repr_shows_what_is_unusual():
    assert repr(SecondOrderRNN(5, 7)) == "SecondOrderRNN(5, 7)"
    assert repr(SecondOrderRNN(5, 7, 2, "relu", first_order=False)) == (
        "SecondOrderRNN(5, 7, num_layers=2, nonlinearity='relu', first_order=False)"
    )
    assert repr(MultiplicativeRNN(5, 7, factors=3, recurrent=True)) == "MultiplicativeRNN(5, 7, factors=3, recurrent=True)"
    assert repr(MultiplicativeRNN(5, 7, factors=7)) == "MultiplicativeRNN(5, 7)"
    assert repr(MultiplicativeLSTM(5, 7, zoneout=0.5)) == "MultiplicativeLSTM(5, 7, zoneout=(0.5, 0.5))"
    assert repr(MogrifierLSTM(5, 7, bias=False, rounds=4, rank=2)) == "MogrifierLSTM(5, 7, bias=False, rounds=4, rank=2)"


def test_relative_names_wrong_use():
    for kind in RELATIVES:
        with pytest.raises(IndexError, match=f"{kind.__name__} with input_size 5 takes tokens 0 to 4, got values from 0 to 5"):
            kind(5, 7)(torch.tensor([[0], [5]]))
        with pytest.raises(RuntimeError, match="Expected 5, got 4"):
            kind(5, 7)(torch.randn(6, 3, 4))
        with pytest.raises(ValueError, match="hidden_size must be greater than zero"):
            kind(5, 0)
    with pytest.raises(ValueError, match="factors must be greater than zero, got 0"):
        MultiplicativeRNN(5, 7, factors=0)
    with pytest.raises(ValueError, match="rounds must be greater than zero, got -1"):
        MogrifierLSTM(5, 7, rounds=-1)
    with pytest.raises(ValueError, match="rank must be greater than zero, got 0"):
        MogrifierLSTM(5, 7, rank=0)


@pytest.mark.parametrize("kind", RELATIVES)
def test_relative_without_bias_has_none_and_runs_under_autocast(kind):
    layer = kind(5, 7, num_layers=2, bias=False)
    assert not any("bias" in name for name in layer.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = layer(torch.randn(6, 3, 5))
        assert layer(torch.randint(5, (6, 3)))[0].dtype == torch.bfloat16
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


# ---- exact maps ----

FORMS = ["additive", "simple", "gated", "general"]


@pytest.mark.parametrize("to", [to_second_order, to_multiplicative])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_mi_rnn_maps_exactly_to_its_relative(to, form, bias):
    options = {"num_layers": 2, "bidirectional": True, "batch_first": True, "learn_state": True, "zoneout": 0.25}
    layer = scatter(MIRNN(5, 7, bias=bias, integration=form, dtype=F64, **options)).eval()
    other = to(layer)
    assert not other.training
    x, tokens = torch.randn(3, 6, 5, dtype=F64), torch.randint(5, (3, 6))
    for given in (x, tokens):
        for ours, theirs in zip(layer(given), other(given), strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("nonlinearity", ["relu", "identity"])
@pytest.mark.parametrize("to", [to_second_order, to_multiplicative])
def test_maps_keep_the_nonlinearity(to, nonlinearity):
    layer = scatter(MIRNN(5, 7, nonlinearity=nonlinearity, dtype=F64))
    x = torch.randn(6, 3, 5, dtype=F64)
    close(layer(x)[0], to(layer)(x)[0])


def test_the_slices_of_an_mi_rnn_as_second_order_rnn_have_rank_one():
    layer = scatter(MIRNN(5, 7, dtype=F64))
    tensor = to_second_order(layer).weight_t_l0.detach()
    assert [int(torch.linalg.matrix_rank(slice_)) for slice_ in tensor] == [1] * 7
    assert [int(torch.linalg.matrix_rank(slice_)) for slice_ in scatter(SecondOrderRNN(5, 7, dtype=F64)).weight_t_l0] == [5] * 7
    i = 3
    close(tensor[i], layer.alpha_l0[i].detach() * torch.outer(layer.weight_ih_l0[i], layer.weight_hh_l0[i]).detach())


def test_an_mi_rnn_as_multiplicative_rnn_has_a_diagonal_after_the_product():
    layer = scatter(MIRNN(5, 7, dtype=F64))
    other = to_multiplicative(layer)
    assert torch.equal(other.weight_hf_l0, torch.diag(layer.alpha_l0))
    assert torch.equal(other.weight_fh_l0, layer.weight_hh_l0) and torch.equal(other.weight_fx_l0, layer.weight_ih_l0)


def test_maps_refuse_what_has_no_counterpart():
    with pytest.raises(ValueError, match="SecondOrderRNN has no normalisation"):
        to_second_order(MIRNN(5, 7, norm="layer"))
    with pytest.raises(ValueError, match=r"MultiplicativeRNN has no recurrent dropout, the layer has 0\.5"):
        to_multiplicative(MIRNN(5, 7, recurrent_dropout=0.5))
    with pytest.raises(TypeError, match="MIRNN"):
        to_second_order(MILSTM(5, 7))


# ---- parameter counts (one-hot input, softmax with bias, one bias per gate) ----


def count(kind, v, h, **extra):
    model = nn.ModuleList([kind(v, h, device="meta", **extra), nn.Linear(h, v, device="meta")])
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "kind, h, v, additive, mi",
    [
        (MIRNN, 2048, 50, 4_401_202, 4_407_346),
        (MIRNN, 2048, 27, 4_306_971, 4_313_115),
        (MIRNN, 2048, 205, 5_036_237, 5_042_381),
        (MILSTM, 1000, 50, 4_254_050, 4_266_050),
        (MILSTM, 1000, 27, 4_139_027, 4_151_027),
        (MILSTM, 1000, 205, 5_029_205, 5_041_205),
        (MILSTM, 1024, 50, 4_454_450, 4_466_738),
        (MILSTM, 1024, 27, 4_336_667, 4_348_955),
        (MILSTM, 1024, 205, 5_248_205, 5_260_493),
        (MILSTM, 2048, 50, 17_297_458, 17_322_034),
        (MILSTM, 2048, 27, 17_061_915, 17_086_491),
        (MILSTM, 2048, 205, 18_884_813, 18_909_389),
        (MIGRU, 1024, 27, 3_259_419, 3_268_635),
    ],
)
def test_parameter_counts_of_mi_and_additive_models(kind, h, v, additive, mi):
    gates = {MIRNN: 1, MILSTM: 4, MIGRU: 3}[kind]
    assert additive == gates * h * h + ((gates + 1) * v + gates) * h + v
    assert count(kind, v, h, integration="additive") == additive
    assert count(kind, v, h) == mi == additive + 3 * gates * h


@pytest.mark.parametrize(
    "kind, h, v, total",
    [
        (SecondOrderRNN, 2048, 50, 214_116_402),
        (SecondOrderRNN, 384, 27, 4_149_915),
        (MultiplicativeRNN, 1500, 86, 4_888_586),
        (MultiplicativeLSTM, 900, 27, 4_199_427),
    ],
)
def test_parameter_counts_of_relatives(kind, h, v, total):
    assert count(kind, v, h) == total


@pytest.mark.parametrize(
    "kind, h",
    [(MIRNN, 1972), (MILSTM, 982), (MIGRU, 1135), (MultiplicativeRNN, 1394), (MultiplicativeLSTM, 878), (SecondOrderRNN, 377)],
)
def test_smallest_widths_with_four_million_parameters_on_text8(kind, h):
    assert count(kind, 27, h - 1) < 4_000_000 <= count(kind, 27, h)


@pytest.mark.parametrize("rank, extra", [(None, 5_000_000), (64, 640_000)])
def test_parameter_counts_of_the_mogrifiers_five_rounds(rank, extra):
    assert count(MogrifierLSTM, 1000, 1000, rank=rank) - count(MogrifierLSTM, 1000, 1000, rounds=0) == extra
    assert count(MogrifierLSTM, 1000, 1000, rounds=0) == count(MILSTM, 1000, 1000, integration="additive")
