"""What every drafter proposes, from a text and a path below it alone: no cache, no rows, no trees.

Plain torch on the drafter's weights, and transformers' own pass for whole models. ``text`` is all
that is committed, its last token the root; ``path`` the tokens from below the root to a node. Each
drafter is a function of both that gives the logits [V] below the node.
"""

import copy
import functools

import torch
from torch import nn
from torch.nn.functional import linear, silu


class Skipped(nn.Module):
    """A block that does nothing."""

    def __init__(self, block):
        super().__init__()
        self.attention_type = getattr(block, "attention_type", None)

    def forward(self, x, *_, **__):
        return x


class Target:
    """A model of transformers."""

    def __init__(self, module):
        self.module = module
        self.pass_over = functools.lru_cache(None)(self._pass_over)

    def _pass_over(self, text):
        ids = torch.tensor([text])
        made = self.module(input_ids=ids, use_cache=False, output_hidden_states=True)
        return made.logits[0], tuple(each[0] for each in made.hidden_states)

    def logits(self, text):
        """[T, V]."""
        return self.pass_over(tuple(text))[0]

    def states(self, text, places):
        """[T, W] of the tokens before the root."""
        before = tuple(text[:-1])
        width = self.module.config.hidden_size * len(places)
        if not before:
            return torch.zeros(0, width, dtype=torch.float64)
        return torch.cat([self.pass_over(before)[1][place] for place in places], dim=-1)

    def embed(self, tokens):
        return self.module.get_input_embeddings()(torch.tensor([*tokens], dtype=torch.long))

    def last(self, x):
        return self.module.get_output_embeddings()(x)


def language_model(module):
    model = Target(module)
    return lambda text, path: model.logits([*text, *path])[-1]


def own_blocks(module, kept):
    """The module with its other blocks doing nothing, each block at its old place."""
    module = copy.deepcopy(module)
    blocks = module.model.layers
    for place in set(range(len(blocks))) - {*kept}:
        blocks[place] = Skipped(blocks[place])
    return language_model(module)


def other_vocabulary(module, vocabulary):
    """A draft reads what its tokens are; probabilities of tokens of one meaning add up."""
    model = Target(module)

    def below(text, path):
        read = []
        for count, token in enumerate(text, 1):
            parts = vocabulary.pieces.get(token, (vocabulary.draft_ids[token],))
            read += parts if len(read) + len(parts) <= 2 * count else (vocabulary.draft_ids[token],)
        own = model.logits([*read, *(vocabulary.draft_ids[token] for token in path)])[-1].softmax(
            -1
        )
        known = torch.zeros(len(vocabulary.draft_ids), dtype=own.dtype)
        for token, meaning in enumerate(vocabulary.target_ids):
            if meaning >= 0:
                known[meaning] += own[token]
        return known.log()

    return below


def pard(module, mask):
    model = Target(module)
    return lambda text, path: model.logits([*text, *[mask] * len(path)])[-1]


# --- heads of one width: key heads of 8 numbers, angles of base 10,000


def norm(x, weight):
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(x, first):
    """x [T, H, d] at positions from ``first`` on, the two halves one plane's coordinates each."""
    half = x.shape[-1] // 2
    angle = (first + torch.arange(len(x)))[:, None, None] / 10000.0 ** (torch.arange(half) / half)
    one, two = x[..., :half], x[..., half:]
    return torch.cat(
        [one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1
    )


def block(w, name, x, read, causal=True):
    """x [T, D] after a block that reads [S, ...], of which the last T are x's own."""
    parts = [linear(read, w[f"{name}.self_attn.{part}_proj.weight"]) for part in "qkv"]
    q, k, v = (part.unflatten(-1, (-1, 8)) for part in parts)
    if f"{name}.self_attn.q_norm.weight" in w:
        q, k = (
            norm(part, w[f"{name}.self_attn.{which}_norm.weight"])
            for part, which in ((q, "q"), (k, "k"))
        )
    q, k = turned(q, 0)[-len(x) :], turned(k, 0)
    scores = torch.einsum("thd,skd->hts", q, k) / 8**0.5  # of one key head
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hts,skd->thd", scores.softmax(-1), v).flatten(1)
    x = x + linear(mixed, w[f"{name}.self_attn.o_proj.weight"])
    y = norm(x, w[f"{name}.post_attention_layernorm.weight"])
    gate, up, down = (w[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + linear(silu(linear(y, gate)) * linear(y, up), down)


def eagle1(w, target):
    def output(feature, after):
        x = linear(torch.cat([after, feature], -1), w["fc.weight"], w["fc.bias"])
        return block(w, "layers.0", x, x)

    return recursive(target, (-1,), output, lambda x: x, lambda x: x, target.last)


def eagle3(w, target, places, shape, ids):
    """With masks P-EAGLE's: all levels at once, of embeddings of its own."""
    target = copy.copy(target)
    if shape.mask_token is not None:
        target.embed = lambda tokens: w["embed_tokens.weight"][[*tokens]]  # type: ignore[method-assign]

    def fuse(states):
        if shape.norm_before_fc:
            states = norm(states, w["input_norm.weight"])
        parts = states.chunk(3, -1)
        if shape.fc_norm:
            parts = tuple(norm(x, w[f"fc_norm.{place}.weight"]) for place, x in enumerate(parts))
        return linear(torch.cat(parts, -1), w["fc.weight"])

    def output(x, after):
        for layer in range(shape.layers):
            if layer:
                read = norm(x, w[f"layers.{layer}.input_layernorm.weight"])
            else:
                after = norm(after, w["layers.0.input_layernorm.weight"])
                normed = norm(x, w["layers.0.hidden_norm.weight"])
                read = torch.cat([after, normed], -1)
                x = normed if shape.norm_before_residual else x
            x = block(w, f"layers.{layer}", x, read)
        return x

    def fed_back(x):
        return norm(x, w["norm.weight"]) if shape.norm_output else x

    def last(x):
        known = linear(norm(x, w["norm.weight"]), w["lm_head.weight"])
        return known.new_full((len(x), shape.vocab), -torch.inf).index_copy(1, ids, known)

    if shape.mask_token is None:
        return recursive(target, places, output, fuse, fed_back, last)

    def below(text, path):
        states, tokens = pairs(target, places, text)
        states = torch.cat([states, *[w["mask_hidden"][0]] * len(path)])
        after = target.embed([*tokens, *[shape.mask_token] * len(path)])
        return last(output(fuse(states), after)[-1:])[0]

    return below


def mtp(w, target, zero_first):
    def output(feature, after):
        after = torch.cat([after[:1] * (not zero_first), after[1:]])
        both = [norm(after, w["enorm.weight"]), norm(feature, w["hnorm.weight"])]
        x = linear(torch.cat(both, -1), w["eh_proj.weight"])
        return block(w, "block", x, norm(x, w["block.input_layernorm.weight"]))

    def normed(x):
        return norm(x, w["norm.weight"])

    return recursive(target, (-1,), output, lambda x: x, normed, lambda x: target.last(normed(x)))


def recursive(target, places, output, fuse, fed_back, last):
    """Pairs of a feature and the next token, then of the head's own outputs; zeros before all."""

    def below(text, path):
        states, tokens = pairs(target, places, text)
        feature = fuse(states)
        for token in path:
            made = fed_back(output(feature, target.embed(tokens))[-1:])
            feature, tokens = torch.cat([feature, made]), [*tokens, token]
        return last(output(feature, target.embed(tokens))[-1:])[0]

    return below


def pairs(target, places, text):
    """Features with the tokens after them; before a first token stand zeros."""
    states = target.states(text, places)
    if not len(states):
        states = states.new_zeros((1, states.shape[1]))
    return states, [*text][-len(states) :]


def dflash(w, target, shape):
    """DSpark's gated term with it, where the head has one."""

    def below(text, path):
        x = target.embed([text[-1], *[shape.mask_token] * (shape.block - 1)])
        entries = linear(target.states(text, shape.layer_ids), w["fc.weight"])
        entries = norm(entries, w["hidden_norm.weight"])
        for layer in range(shape.layers):
            own = norm(x, w[f"layers.{layer}.input_layernorm.weight"])
            x = block(w, f"layers.{layer}", x, torch.cat([entries, own]), causal=False)
        x = norm(x, w["norm.weight"])[len(path) + (not shape.from_known)]
        logits = target.last(x)
        if shape.markov_rank:
            name = "markov_head"
            known = w[f"{name}.markov_w1.weight"][[*text, *path][-1]]
            gate = w[f"{name}.gate_proj.weight"], w[f"{name}.gate_proj.bias"]
            known = known * torch.sigmoid(linear(torch.cat([x, known]), *gate))
            logits = logits + linear(known, w[f"{name}.markov_w2.weight"])
        return logits

    return below


def medusa(w, target):
    def below(text, path):
        x = state_before(target, text)
        name = f"heads.{len(path)}"
        x = x + silu(linear(x, w[f"{name}.0.linear.weight"], w[f"{name}.0.linear.bias"]))
        return linear(x, w[f"{name}.1.weight"])

    return below


def redrafter(w, target):
    def below(text, path):
        x = state_before(target, text)
        state = torch.zeros_like(x)
        for token in (text[-1], *path):
            taken = linear(target.embed([token])[0], w["rnn_w.weight"])
            state = silu(linear(state, w["rnn_u.weight"], w["rnn_u.bias"]) + taken)
        x = torch.cat([x, state])
        x = x + silu(linear(x, w["lm_head.0.linear.weight"], w["lm_head.0.linear.bias"]))
        return linear(x, w["lm_head.1.weight"])

    return below


def state_before(target, text):
    """[D] the last hidden state at the token before the root; zeros if there is none."""
    states = target.states(text, (-1,))
    return states[-1] if len(states) else states.new_zeros(states.shape[1])


# --- what is looked up


def occurred(text, longest):
    """Where the longest n-gram at the end, of at most so many tokens, ended before."""
    for length in range(min(longest, len(text)), 0, -1):
        ends = range(length, len(text))
        if found := [end for end in ends if text[end - length : end] == text[-length:]]:
            return found
    return []


def voted(text, longest, width, depth):
    """By level what followed most occurrences, of equally many the latest."""
    text = tuple(text)
    runs = [(end, text[end : end + depth]) for end in occurred(text, longest)]
    found, level = [], [()]
    for at in range(1, depth + 1):
        seen = {}
        for end, run in runs:
            if len(run) >= at and run[: at - 1] in level:
                seen.setdefault(run[:at], []).append(end)
        level = sorted(seen, key=lambda path: (-len(seen[path]), -max(seen[path])))[:width]
        found += level
    return found


def first_match(text, longest, depth):
    ends = occurred(text, longest)
    return text[ends[0] : ends[0] + depth] if ends else text[:0]


def looked_up_or(model, vocab, longest, depth):
    def below(text, path):
        chain = voted(text, longest, 1, depth)
        if not chain:
            return model(text, path)
        return torch.zeros(vocab).index_fill(0, torch.tensor(chain[len(path)][-1]), 1.0).log()

    return below


# --- suffix decoding, by counting every string


def occurrences(texts, string):
    """(text, end) of a string in some texts, in the order read."""
    size = len(string)
    return [
        (place, start + size)
        for place, text in enumerate(texts)
        for start in range(len(text) - size + 1)
        if tuple(text[start : start + size]) == string
    ]


def counted(texts, match, most, bounds, depth, least):
    """(score, nodes by level) below a match, the likeliest first, of a tree of paths."""
    levels = []
    offered, taken, score = [((), 1.0)], 0, 0.0
    waiting = []

    def offer(path, worth):
        here = occurrences(texts, (*match, *path))
        following = [texts[text][end] for text, end in here if end < len(texts[text])]
        for token in dict.fromkeys(following):
            share = worth * following.count(token) / len(here)
            longest = len(match) + len(path) + 1
            if share >= least and len(path) < bounds.depth and longest <= depth:
                waiting.append((-share, len(offered), (*path, token)))
                offered.append(((*path, token), share))

    if occurrences(texts, match):
        offer((), 1.0)
    while waiting and taken < most:
        worth, _, path = min(waiting)
        waiting.remove((worth, _, path))
        if len(path) > len(levels):
            levels.append([])
        if len(levels[len(path) - 1]) == bounds.width:
            continue
        if len(path) > 1 and path[:-1] not in [each for each, _ in levels[len(path) - 2]]:
            continue
        levels[len(path) - 1].append((path, -worth))
        score, taken = score - worth, taken + 1
        offer(path, -worth)
    return score, [[path for path, _ in level] for level in levels]


def by_hand(own, answers, bounds, depth, least):
    """The best proposal over all matches and both texts."""
    best = (0.0, [])
    for texts in ([own], answers):
        longest = (0.0, [])
        for length in range(1, min(len(own), depth + 1)):
            match = tuple(own[-length:])
            if not occurrences(texts, match):
                break
            most = min(bounds.width * bounds.depth, length)
            found = counted(texts, match, most, bounds, depth, least)
            if found[0] >= longest[0]:
                longest = found
        if longest[0] > best[0]:
            best = longest
    return best[1]
