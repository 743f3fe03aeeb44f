"""The oracle: what whence has to give for a random model, by plain autograd and loops.

It knows the structure because it built it: which maps there are, what enters each block, which
tokens stand for a part of the input. Formulas are those of the methods' documentation.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.fuzz import ops
from tests.fuzz.models import Case

SHARING = {True: 2.0, False: 0.25}  # of images, of signals and texts


@dataclass
class Reading:
    """What one set of rules carries from a logit of each sample to the places of a forward pass."""

    logits: Tensor
    maps: list[Tensor]  # (batch, heads, queries, keys) at each attention
    at_maps: list[Tensor]
    entering: list[Tensor]  # (batch, tokens, width) at each block's input
    at_entering: list[Tensor]
    pools: list[bool]
    streams: list[str]
    inputs: Tensor
    at_inputs: Tensor


class Oracle:
    """Readings of one case, each made once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._readings: dict[tuple[str, tuple[int, ...], bool], Reading] = {}
        with torch.no_grad():
            self.logits = case.run()
        highest = self.logits.argmax(1)
        asked = case.asked
        if "classes" in asked:
            self.classes = torch.tensor([asked["classes"]] * len(highest))
        else:
            target = asked.get("target", highest)
            self.classes = torch.as_tensor(target).expand(len(highest))[:, None]
        self.highest = highest

    def read(self, rules: str, classes: Tensor, centered: bool = False) -> Reading:
        """Of the logits of classes; or of these less the mean of all logits."""
        key = rules, tuple(classes.tolist()), centered
        if key not in self._readings:
            self._readings[key] = self._read(rules, classes, centered)
        return self._readings[key]

    def _read(self, rules: str, classes: Tensor, centered: bool) -> Reading:
        with torch.enable_grad(), ops.record(rules) as tape:
            logits = self.case.run()
        maps, entering = [s.maps for s in tape.sites], [s.entering for s in tape.sites]
        places = [*maps, *entering, tape.inputs]
        target = logits.gather(1, classes[:, None]).sum()
        if centered and logits.shape[1] > 1:
            target = target - logits.mean(1).sum()
        found = torch.autograd.grad(target, places, allow_unused=True)
        found = [
            torch.zeros_like(at) if value is None else value
            for at, value in zip(places, found, strict=True)
        ]
        count = len(maps)
        maps = [self._join_windows(n, m.detach()) for n, m in enumerate(maps)]
        found[:count] = [self._join_windows(n, m) for n, m in enumerate(found[:count])]

        def by_sample(values: list[Tensor]) -> list[Tensor]:
            pairs = zip(values, tape.sites, strict=True)
            return [x.detach().transpose(0, 1) if s.tokens_first else x.detach() for x, s in pairs]

        return Reading(
            logits.detach(),
            maps,
            found[:count],
            by_sample(entering),
            by_sample(list(found[count : 2 * count])),
            [s.pools for s in tape.sites],
            [s.stream for s in tape.sites],
            tape.inputs.detach(),
            found[-1],
        )

    def _join_windows(self, number: int, maps: Tensor) -> Tensor:
        """Maps of windows, (batch x windows, heads, size, size), as whole ones with zeros."""
        plan, tokens = self.case.plan, self.case.model.total
        if plan.structure not in ("windows", "shifted") or number >= len(plan.blocks):
            return maps
        size, shift = self.case.model.blocks[number].window
        whole = maps.new_zeros(plan.batch, maps.shape[1], tokens, tokens)
        for place in range(len(maps)):
            sample, window = divmod(place, tokens // size)
            rows = [(window * size + i + shift) % tokens for i in range(size)]
            for i, j in itertools.product(range(size), range(size)):
                whole[sample, :, rows[i], rows[j]] = maps[place, :, i, j]
        return whole

    # Methods --------------------------------------------------------------------------------------

    def explain(self, method: str) -> Tensor:
        """The scores of a method: (batch, units), or (batch, classes, units)."""
        columns = []
        for column in range(self.classes.shape[1]):
            rows = [
                self._to_units(getattr(self, f"_{method}")(sample, self.classes[:, column]), sample)
                for sample in range(self.case.plan.batch)
            ]
            columns.append(torch.stack(rows))
        scores = torch.stack(columns, 1)
        return scores if "classes" in self.case.asked else scores[:, 0]

    def _tiba(self, sample: int, classes: Tensor) -> Tensor:
        gradient, relevance = self.read("gradient", classes), self.read("stable", classes)
        sites = self.find_sites(sample, classes)
        layers = [
            (gradient.at_maps[n] * relevance.at_maps[n])[sample].clamp(min=0).mean(0) for n in sites
        ]
        return self._roll_out(sample, classes, sites, layers)

    def _gae(self, sample: int, classes: Tensor) -> Tensor:
        gradient, sites = self.read("gradient", classes), self.find_sites(sample, classes)
        layers = [
            (gradient.at_maps[n] * gradient.maps[n])[sample].clamp(min=0).mean(0) for n in sites
        ]
        if "across" in gradient.streams:
            pooling, _ = self.find_pooling(sample, classes)
            return self._explain_across(pooling, [gradient.streams[n] for n in sites], layers)
        return self._roll_out(sample, classes, sites, layers)

    def _explain_across(self, rows: Tensor, streams: list[str], layers: list[Tensor]) -> Tensor:
        """GAE's rules for queries that attend to tokens, and the weights of the queries."""

        def step(moved: Tensor, layer: Tensor) -> Tensor:
            return moved + layer + layer @ moved  # R - I, which may be far smaller than I

        def normalize(moved: Tensor) -> Tensor:
            sums = moved.sum(1, keepdim=True)
            identity = torch.eye(len(moved), dtype=torch.float64)
            return identity + moved / sums.masked_fill(sums == 0, 1)

        queries = next(len(a) for s, a in zip(streams, layers, strict=True) if s == "across")
        tokens = self.case.model.total
        within = torch.zeros(tokens, tokens, dtype=torch.float64)
        own = torch.zeros(queries, queries, dtype=torch.float64)
        across = torch.zeros(queries, tokens, dtype=torch.float64)
        for stream, layer in zip(streams, layers, strict=True):
            if stream == "tokens":
                within = step(within, layer)
            elif stream == "queries":
                own, across = step(own, layer), across + layer @ across
            else:
                across = across + normalize(own).T @ layer @ normalize(within)
        return rows @ across

    def _rollout(self, sample: int, classes: Tensor) -> Tensor:
        sites = self.find_sites(sample, self.highest)
        maps = self.read("gradient", self.highest).maps
        layers = [maps[n][sample].mean(0) for n in sites]
        return self._roll_out(sample, self.highest, sites, layers, is_rollout=True)

    def _attnlrp(self, sample: int, classes: Tensor) -> Tensor:
        reading = self.read("attnlrp", classes)
        return self._sum_over_tokens((reading.inputs * reading.at_inputs)[sample])

    def _reslrp(self, sample: int, classes: Tensor) -> Tensor:
        reading = self.read("reslrp", classes)
        return self._sum_over_tokens((reading.inputs * reading.at_inputs)[sample])

    def _input_x_gradient(self, sample: int, classes: Tensor) -> Tensor:
        reading = self.read("gradient", classes)
        return self._sum_over_tokens((reading.inputs * reading.at_inputs)[sample])

    def _whence(self, sample: int, classes: Tensor) -> Tensor:
        balanced = self.read("balanced", classes, centered=True)
        sites = self.find_sites(sample, classes, centered=True)
        tokens = self.case.model.total
        held: list[Tensor] = []
        read = torch.zeros(tokens, dtype=torch.float64)
        links = torch.zeros(tokens, tokens, dtype=torch.float64)
        reached = torch.zeros(tokens, dtype=torch.bool)
        for n in sites:
            maps, at_maps = balanced.maps[n][sample], balanced.at_maps[n][sample]
            if balanced.streams[n] == "queries":
                continue  # these stand for no part of the input
            merges = _merge(maps.shape[2], tokens)
            read += _read_of_keys(maps, at_maps) @ merges
            if balanced.streams[n] == "across":
                continue  # what enters the block, and attends, stands for no part of the input
            hidden, at_hidden = balanced.entering[n][sample], balanced.at_entering[n][sample]
            held.append((hidden * at_hidden).sum(-1) @ merges)
            reached |= (at_hidden.any(-1).double() @ merges) > 0
            if not balanced.pools[n]:
                attention = merges.T @ maps.sum(0) @ merges
                links += attention + attention.T
        if self.case.plan.inputs != "image":
            early = held[: max(1, len(held) // 2)]
            return read + sum(early) / len(early)
        evidence = sum(held) + 4 * read
        linked = (self.case.parts & self.case.real[sample] & reached).tolist()
        scores = torch.zeros(tokens, dtype=torch.float64)
        for i in range(tokens):
            e = float(evidence[i])
            near = max(e, 0) ** 0.5  # of a token that attention links to none
            weights = [float(links[i, j]) if linked[j] else 0.0 for j in range(tokens)]
            if linked[i] and sum(weights) > 0:
                roots = [max(float(one), 0) ** 0.5 for one in evidence]
                near = sum(w * r for w, r in zip(weights, roots, strict=True)) / sum(weights)
            scores[i] = math.copysign(abs(e) ** 0.5, e) * near
        return scores

    def _shared_evidence(self, sample: int, classes: Tensor) -> Tensor:
        balanced, sites = self.read("balanced", classes), self.find_sites(sample, classes)
        plan, tokens = self.case.plan, self.case.model.total
        cut, sharing = (
            plan.inputs in ("image", "signal", "waveform"),
            SHARING[plan.inputs == "image"],
        )
        evidence = torch.zeros(tokens, dtype=torch.float64)
        links = torch.zeros(tokens, tokens, dtype=torch.float64)
        reached = torch.zeros(tokens, dtype=torch.bool)
        for n in sites:
            if balanced.streams[n] != "tokens":
                continue  # queries stand for no part of the input
            merges = _merge(balanced.entering[n].shape[1], tokens)
            reached |= (balanced.at_entering[n][sample].any(-1).double() @ merges) > 0
            products = balanced.entering[n][sample] * balanced.at_entering[n][sample]
            evidence += products.sum(-1).clamp(min=0) @ merges
            if not balanced.pools[n]:
                attention = merges.T @ balanced.maps[n][sample].mean(0) @ merges
                links += attention + attention.T
        roots = evidence.sqrt()
        linked = (self.case.parts & self.case.real[sample] & reached).tolist()
        scores = torch.zeros_like(roots)
        for i in range(tokens):
            others = roots[i]
            weights = [float(links[i, j]) if linked[j] else 0.0 for j in range(tokens)]
            if linked[i] and sum(weights) > 0:
                others = sum(w * r for w, r in zip(weights, roots, strict=True)) / sum(weights)
            score = (roots[i] + sharing * others) / (1 + sharing)
            scores[i] = score if cut else score**2
        return scores

    # Parts of methods -----------------------------------------------------------------------------

    def is_dead(self) -> bool:
        """Whether an explained logit has no gradient anywhere, behind a saturated tanh say.

        Or whether numbers grow so large that rounding alone decides.
        """
        if float(self.logits.abs().max()) > 1e12:
            return True
        columns = [self.classes[:, n] for n in range(self.classes.shape[1])]
        samples = range(len(self.classes))
        return not all(self.find_sites(sample, one) for one in columns for sample in samples)

    def find_sites(self, sample: int, classes: Tensor, centered: bool = False) -> list[int]:
        """The attentions that the logit of a sample depends on."""
        gradients = self.read("gradient", classes, centered).at_maps
        return [n for n, gradient in enumerate(gradients) if bool(gradient[sample].any())]

    def find_pooling(self, sample: int, classes: Tensor) -> tuple[Tensor, bool]:
        """The weights of the rows that are read, and whether these rows are tokens.

        Tokens that are read weigh the same within those that stand for a part of the input, and
        within the others; the two groups as the logit depends on them.
        """
        reading, last = self.read("gradient", classes), self.find_sites(sample, classes)[-1]
        dependence = reading.at_maps[last][sample].abs().sum((0, 2))
        if reading.pools[last]:
            read = (dependence > 0).double()
            return read / read.sum(), False
        pooling = torch.zeros_like(dependence)
        parts = self.case.parts
        if len(parts) != len(dependence):  # merged tokens all stand for some, and queries for none
            parts = torch.full_like(pooling, reading.streams[last] == "tokens") > 0
        for group in (parts, ~parts):
            read = group & (dependence > 0)
            if read.any():
                pooling[read] = dependence[group].sum() / dependence.sum() / read.sum()
        return pooling, True

    def _roll_out(
        self,
        sample: int,
        classes: Tensor,
        sites: list[int],
        layers: list[Tensor],
        is_rollout: bool = False,
    ) -> Tensor:
        pooling, of_tokens = self.find_pooling(sample, classes)
        reading = self.read("gradient", classes)
        pools, tokens = reading.pools, self.case.model.total
        kept, moved = pooling, torch.zeros_like(pooling)
        if "across" in reading.streams:
            streams = [reading.streams[n] for n in sites]
            return self._roll_out_across(pooling, streams, layers, is_rollout)
        for n, layer in reversed(list(zip(sites, layers, strict=True))):
            merges = _merge(len(kept), len(layer))
            kept, moved = kept @ merges, moved @ merges
            if is_rollout:
                sums = layer.sum(1) + (0 if pools[n] else 1)
                kept, moved = kept / sums, moved / sums
            step = (kept + moved) @ layer
            if pools[n]:
                kept, moved = torch.zeros_like(step), step
            else:
                moved = moved + step
        merges = _merge(len(kept), tokens)
        kept, moved, with_skips = kept @ merges, moved @ merges, is_rollout
        if of_tokens and len(pooling) == tokens:
            weights = pooling[self.case.parts & self.case.real[sample]]
            with_skips |= not torch.allclose(weights, weights[:1], rtol=1e-9)
        return kept + moved if with_skips else moved

    def _roll_out_across(
        self, rows: Tensor, streams: list[str], layers: list[Tensor], is_rollout: bool
    ) -> Tensor:
        """Rows of queries stay and go to the tokens, whose rows then pass the tokens' layers."""
        at_tokens = torch.zeros(self.case.model.total, dtype=torch.float64)
        constant = streams.index("across")  # of queries that do not depend on the input yet
        for number, (stream, layer) in reversed(list(enumerate(zip(streams, layers, strict=True)))):
            at = at_tokens if stream == "tokens" else rows
            if is_rollout:
                at = at / (layer.sum(1) + (number != constant))
            if stream == "tokens":
                at_tokens = at + at @ layer
            elif stream == "queries":
                rows = at + at @ layer
            else:
                at_tokens, rows = at_tokens + at @ layer, at
        return at_tokens

    def _sum_over_tokens(self, values: Tensor) -> Tensor:
        """Values at pixels, samples or embeddings, summed over each token."""
        plan = self.case.plan
        scores = torch.zeros(self.case.model.total, dtype=torch.float64)
        parts = []
        for token in range(plan.tokens):
            if plan.inputs == "image":
                row, column = divmod(token, plan.grid[1])
                rows = slice(row * plan.patch, (row + 1) * plan.patch)
                columns = slice(column * plan.patch, (column + 1) * plan.patch)
                parts.append(values[:, rows, columns].sum())
            elif plan.inputs in ("signal", "waveform"):
                parts.append(values[..., token * plan.patch : (token + 1) * plan.patch].sum())
            else:
                parts.append(values[token].sum())
        scores[self.case.parts] = torch.stack(parts)
        return scores

    def _to_units(self, scores: Tensor, sample: int) -> Tensor:
        """Units are the tokens that stand for a part of the input; padding has none."""
        scores = scores.masked_fill(~self.case.real[sample], 0)
        return scores[self.case.parts]


def _read_of_keys(maps: Tensor, at_maps: Tensor) -> Tensor:
    """What all queries read of each key, against the mean of the keys that they see.

    Both arguments are (heads, queries, keys).
    """
    read = torch.zeros(maps.shape[2], dtype=torch.float64)
    for head, query in itertools.product(range(maps.shape[0]), range(maps.shape[1])):
        seen = [key for key in range(maps.shape[2]) if maps[head, query, key] > 1e-30]
        mean = sum(float(at_maps[head, query, key]) for key in seen) / max(1, len(seen))
        for key in seen:
            read[key] += maps[head, query, key] * (at_maps[head, query, key] - mean)
    return read


def _merge(tokens: int, of: int) -> Tensor:
    """(tokens, of), rows sum to 1: each token is the mean of as many neighbours."""
    each = torch.eye(tokens, dtype=torch.float64)
    return each.repeat_interleave(of // tokens, 1) * tokens / of if of % tokens == 0 else each
