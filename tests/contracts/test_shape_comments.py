"""Every shape comment of the blocks, the models and the search is compared with a tensor, on all-distinct sizes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
import torch

import heedful
from heedful.blocks import sparse
from heedful.blocks.attention import KV, MultiHead, SelfAttention, attend
from heedful.blocks.connectors import Constant, Forward, Mlp, Stochastic
from heedful.blocks.convolution import ConvNorm, ConvNormRelu, Convolution, ConvRelu, Inception, Residual, in_blocks
from heedful.blocks.graphs import GraphLSTM, Order
from heedful.blocks.grids import GridLSTM
from heedful.blocks.int8 import Int8Linear, PlainInt8, int8
from heedful.blocks.layouts import Documents, PackedPairs, PackedTexts, Padded, Unpadded
from heedful.blocks.losses import cross_entropy, projected_cross_entropy
from heedful.blocks.masks import alibi, block_table, causal, dense, random_blocks, real, window
from heedful.blocks.noise import gaussian
from heedful.blocks.patches import LearnedGrid, Patches, SinusoidGrid
from heedful.blocks.recurrent import BidirectionalLayer, unroll
from heedful.blocks.regions import geometry, roi_pool
from heedful.blocks.regularizers import entropy, kl_divergence, normal_kl, normal_log_density
from heedful.blocks.relative import (
    consecutive_terms,
    distance_sinusoids,
    distances,
    gathered_bias,
    relative_bias,
    segment_bias,
)
from heedful.blocks.scores import Additive, DepthScaledDot, General, Location, cosine, dot, scaled_dot
from heedful.blocks.slots import join, keep
from heedful.blocks.sparse import BlockSparse
from heedful.blocks.state import Cache, Ragged, make_room, regroup, reserve, select
from heedful.blocks.taps import Tap, watch
from heedful.data.trees.batches import encode_trees
from heedful.data.trees.treebank import Tree, parse_tree
from heedful.decode.per_row import RowSettings
from heedful.decode.rules import (
    ForcedPrefix,
    MinLength,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
    VocabLimit,
)
from heedful.decode.search import beam, drain, greedy, grouped_topk, sample
from heedful.decode.settings import Sampling
from heedful.explore.capabilities import LogitLens
from heedful.models import MODELS, build, config_class
from heedful.models.bert.config import BertConfig
from heedful.models.bert.model import Bert
from heedful.models.conv_classifier.config import ConvClassifierConfig
from heedful.models.conv_classifier.model import ConvClassifier
from heedful.models.elmo.config import ElmoConfig
from heedful.models.elmo.model import Elmo, Embedder
from heedful.models.gpt.config import GptConfig
from heedful.models.gpt.model import Gpt
from heedful.models.heads.answerer import Answerer
from heedful.models.heads.classifier import Classifier, Regressor
from heedful.models.heads.config import AnswererConfig, ClassifierConfig, RegressorConfig, TaggerConfig
from heedful.models.heads.tagger import Tagger
from heedful.models.layer_graph import receptive_fields
from heedful.models.memory_network.bag import BagOfWords
from heedful.models.memory_network.config import BagOfWordsConfig, MemoryNetworkConfig
from heedful.models.memory_network.model import MemoryNetwork
from heedful.models.own import PlainCausal, PlainSeq2Seq
from heedful.models.rnn_lm.config import RnnLMConfig
from heedful.models.rnn_lm.model import RnnLM
from heedful.models.seq2seq.config import Seq2SeqConfig
from heedful.models.seq2seq.model import Seq2Seq
from heedful.models.transformer.config import TransformerConfig
from heedful.models.transformer.model import Transformer
from heedful.models.transformer_xl.config import TransformerXLConfig
from heedful.models.transformer_xl.model import TransformerXL
from heedful.models.tree_lstm.config import TreeLSTMConfig
from heedful.models.tree_lstm.model import TreeLSTM, one_by_one
from heedful.models.xlnet.config import XLNetConfig
from heedful.models.xlnet.model import XLNet
from heedful.shapes import check, statements

SOURCE = Path(heedful.__file__).parent
FILES = [path for pattern in ("blocks/*.py", "models/**/*.py", "decode/*.py") for path in sorted(SOURCE.glob(pattern))]
FILES.remove(SOURCE / "models" / "gpt" / "rows.py")  # all of it runs on a device
GPU = (
    "attend_cached",
    "packed_attention",
    "packed_self_attention",
    "short_self_attention",
    "relative_attention",
    "run_fused",
    "fused_argmax",
)  # kernels that a test without a device cannot reach

B, S, T, D, H, K, F, V = 2, 7, 5, 30, 3, 10, 13, 17
M = 22  # width of a recurrent net's memory


def scores() -> None:
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, H, S, K), torch.randn(B, H, S, 11)
    for score in (dot, cosine, General(K, K), Additive(K, K, F), Location(K, S)):
        attend(q, k, v, causal(S - T), score=score)
    scaled_dot(q, k), DepthScaledDot(4)(q, k)
    attend(torch.randn(B * 4, H, T, K), k, v)
    KV(k, k, torch.zeros(B, S, dtype=torch.long), torch.tensor(S)).gather()
    SelfAttention(D, H, 0.0).attend_from(torch.zeros(B, T, D), 1)
    block = MultiHead(D, H)
    block(torch.randn(B, T, D), block.keys_values(torch.randn(B, S, D)))


def models() -> None:
    source, target = torch.randint(0, V, (B, S)), torch.randint(0, V, (B, T))
    real = torch.arange(S) < torch.tensor([[S], [4]])
    for positions in ("sinusoid", "sinusoid_halves", "learned", "none", "rotary", "alibi"):
        config = TransformerConfig(
            vocab=V, width=D, heads=H, encoder_layers=1, decoder_layers=1, hidden=F, context=40, positions=positions
        )
        model = Transformer(config).eval()
        model(target, model.start(source, Unpadded(source)))
        model.lens(torch.randn(B, T, D))
        with torch.inference_mode():
            _, state = model(target, model.start(source, Padded(real)))
            model(target[:, :1], reserve(reserve(state, 9), 12))
            model(target[:, :1], make_room(state, 1))
        layout = PackedPairs.of(torch.tensor([4, 2]), torch.tensor([1, 3]), S, T, longest=4)
        model(target[:1], model.start(source[:1], layout))


def relative() -> None:
    table = distance_sinusoids(distances(T, S, S - T), D).float()
    q, r = torch.randn(B, H, T, K), table.unflatten(1, (H, K)).transpose(0, 1)
    index = torch.zeros(B, 1, T, S, dtype=torch.long)
    for bias in (relative_bias(q, r), gathered_bias(q, r, index)):
        dense(segment_bias(bias, q, torch.randn(2, H, K), index == 0), q, torch.randn(B, H, S, K))
    consecutive_terms(q, r, S)
    consecutive_terms(torch.randn(B, H, 192, K), torch.randn(H, 400, K), 208)


def two_streams() -> None:
    """XLNet as an encoder, with masks, and with both streams and a memory."""
    settings = {"vocab": V, "width": D, "heads": H, "layers": 1, "hidden": F, "context": 40, "pooler": True}
    model = XLNet(XLNetConfig.model_validate(settings)).eval()
    tokens, real = torch.randint(0, V, (B, S)), torch.arange(S) < torch.tensor([[S], [4]])
    x = model(tokens, torch.zeros_like(tokens), Padded(real))
    model.summarize(x, Padded(real)), model.words(x[0, :4]), model.lens(x)
    model.masked_vectors(tokens, None, Padded(real), torch.tensor([1, 2]))
    ranks, places = torch.arange(S).expand(B, -1), torch.zeros(B, T, dtype=torch.long)
    model.two_streams(tokens, ranks, places, ranks, None, model.start(B, M, tokens.device).append(model.layers(tokens)))


def block_sparse() -> None:
    """Block-sparse attention with every rule that knows its blocks, forwards and backwards, and its dense mask."""
    q, k, v = (torch.randn(B, H, n, K, requires_grad=True) for n in (70, 90, 90))
    some = real(torch.arange(90) < torch.tensor([[90], [40]]))
    for rule in (
        window(9, 20),
        block_table(torch.ones(1, 3, 3, dtype=torch.bool), 32),
        random_blocks(1, 32, H, 0, 70, 90),
    ):
        mask = BlockSparse.of(rule & some, B, H, 70, 90)
        attend(q, k, v, mask, alibi(H)).sum().backward()
        attend(q, k, v, mask, dropout=0.1)
        mask.dense()
        attention = Watched()
        with patch.object(sparse, "DENSE", 0), watch(attention) as seen:
            attention(q, k, v, mask)
        seen.blocks["weights"].sums(), seen.blocks["scores"].dense()


class Watched(torch.nn.Module):
    """Attention with taps."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.weights = Tap(), Tap()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockSparse) -> torch.Tensor:
        return attend(q, k, v, mask, alibi(H), scores=self.scores, weights=self.weights)


def with_memory() -> None:
    """Transformer-XL over segments, padded ones and ones with documents, with clusters of tokens in each way."""
    tokens, documents = torch.randint(0, V, (B, T)), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    for clusters in ({}, {"cutoffs": (3, 8), "divisor": 2}, {"cutoffs": (3, 8), "embed": F}):
        config = TransformerXLConfig(vocab=V, width=D, heads=H, layers=2, hidden=19, memory=S, **clusters)
        model = TransformerXL(config).eval()
        _, state = model(tokens, model.start(B, tokens.device))
        model(tokens, state, torch.arange(T) < torch.tensor([[T], [4]]))
        model(tokens, reserve(state, 0))
        model.read(tokens, documents)
        model.lens(torch.randn(B, T, D))
        model.tokens.loss(torch.randn(B * T, D), tokens.flatten())


def ahead_alone() -> None:
    """GPT over whole windows, over windows with documents in them, and token by token."""
    tokens, documents = torch.randint(0, V, (B, T)), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    for positions in ("learned", "sinusoid", "alibi", "rotary"):
        model = Gpt(GptConfig(vocab=V, width=D, heads=H, layers=2, hidden=F, context=40, positions=positions)).eval()
        model.read(tokens)
        model.read(tokens, documents)
        layout = Padded(torch.arange(T).expand(B, -1) > 0)
        model.summarize(model.layers(tokens, None, layout)[-1], layout)
        model.lens(torch.randn(B, T, D))
        with torch.inference_mode():
            _, state = model(tokens, model.start(B, tokens.device))
            model(tokens[:, :1], reserve(state, 12))
            model(tokens, Cache((None, None), Ragged(torch.tensor([0, 2]), 40)))
        windowed = Gpt(model.config.model_copy(update={"window": 3, "sink": 2})).eval()
        with torch.inference_mode():
            _, state = windowed(
                tokens, replace(windowed.start(B, tokens.device), ragged=Ragged(torch.tensor([0, 2]), 40))
            )
            windowed(tokens, reserve(state, 12))
    Documents.of(documents, in_one_row=True)


def coming_and_going() -> None:
    """GPT token by token, on rows of several lengths that join and leave."""
    model = Gpt(GptConfig(vocab=V, width=D, heads=H, layers=2, hidden=F, context=40)).eval()
    tokens = torch.randint(0, V, (4, S))
    with torch.inference_mode():
        _, first = model(tokens[:B, :T], model.start(B, tokens.device))
        _, second = model(tokens[:1], model.start(1, tokens.device))
        _, state = model(tokens[:3, :1], join(first, second))
        model(tokens[:B, :1], keep(state, [2, 0]))


def recurrent() -> None:
    tokens = torch.randint(0, V, (B, T))
    real = torch.arange(T) < torch.tensor([[T], [4]])
    for cell in ("rnn", "lstm", "gru"):
        model = RnnLM(RnnLMConfig(vocab=V, width=D, hidden=F, layers=3, cell=cell)).eval()
        _, state = model(tokens, model.start(B, tokens.device))
        model(tokens[:, :1], state)
        model.stack.step(torch.randn(B, D), state.layers)
        model.read(tokens, real)
        model.lens(torch.randn(B, T, F))
        x, both = torch.randn(B, T, D), BidirectionalLayer(cell, D, F)
        both(x, None, real)
        both(x, None, torch.arange(T) != torch.tensor([[1], [2]]))
        unroll(both.ahead.cell, x, both.ahead.zeros(x), real)
    elmo = Elmo(ElmoConfig(vocab=V, width=D, hidden=F, layers=3))
    elmo(tokens)
    Embedder(elmo)(tokens, real)


def with_attention() -> None:
    source, target = torch.randint(0, V, (B, S)), torch.randint(0, V, (B, T))
    real = torch.arange(S) < torch.tensor([[S], [4]])
    readers: list[dict[str, object]] = [
        {"kind": "recurrent", "hidden": M},
        {"kind": "transformer", "heads": H, "hidden": 19, "layers": 1},
        {"kind": "convolutional", "layers": 1},
    ]
    looks: list[dict[str, object] | None] = [
        None,
        {"score": "additive", "feed": "input", "choice": "hard"},
        {"score": "additive", "feed": "output"},
        {"score": "general", "feed": "input", "span": {"kind": "monotonic", "window": 2}},
        {"score": "location", "feed": "output", "span": {"kind": "predictive", "window": 2}},
    ]
    for encoder in readers:
        for attention in looks:
            settings = {"vocab": V, "width": D, "hidden": F, "encoder": encoder, "attention": attention, "context": 40}
            model = Seq2Seq(Seq2SeqConfig.model_validate(settings)).eval()
            with watch(model):
                model.read(source, target)
            with torch.inference_mode():
                _, state = model(target, model.start(source, Padded(real)))
                model(target[:, :1].repeat_interleave(3, 0), regroup(state, torch.arange(B).repeat_interleave(3)))
            if model.config.hard:
                model.train().read_sampled(source, target, Padded(real))


def structures() -> None:
    GridLSTM(D, F)(torch.randn(B, T, S, D))
    order = Order.of(5, [(0, 2), (1, 2), (1, 3), (0, 4), (2, 4), (3, 4)])
    for merge in ("sum", "mean"):
        GraphLSTM(D, F, merge)(torch.randn(5, D), order)
    tree = parse_tree("(1 (0 a) (2 (1 b) (3 (0 c) (1 d))))", "here", 5)
    chain = Tree((0, 1), ("a", "b"), ((), (0,)))
    batch = encode_trees([tree, chain], None).batch(np.arange(2))
    for form in ("nary", "child_sum"):
        model = TreeLSTM(TreeLSTMConfig(form=form, arity=3, vocab=V, width=D, hidden=F, classes=11))
        model(batch)
        one_by_one(model, [word and 1 for word in tree.words], tree.children)


def marking() -> None:
    """Tagger and answerer: sequences of 7 and 4 tokens, some of which start a word or are in a passage."""
    encoder = {"vocab": V, "width": D, "heads": H, "layers": 4, "hidden": F, "context": 40}
    tokens, segments = torch.randint(0, V, (B, S)), torch.randint(0, 2, (B, S))
    layout = Padded(torch.arange(S) < torch.tensor([[S], [4]]))
    for reader in ({"kind": "linear"}, {"kind": "bilstm", "hidden": M}):
        settings = {"encoder": encoder, "labels": tuple("OBI"), "features": "concat_last_four", "reader": reader}
        Tagger(TaggerConfig.model_validate(settings))(tokens, segments, layout, torch.tensor([1, 2, 4, 8, 9]))
    answerer = Answerer(AnswererConfig.model_validate({"encoder": encoder}))
    answerer(tokens, segments, layout, torch.tensor([3, 8]), torch.tensor([3, 2]), 3)


def classifying() -> None:
    encoder = {"vocab": V, "width": D, "heads": H, "layers": 1, "hidden": F, "context": 40}
    tokens = torch.randint(0, V, (B, S))
    for model in (
        Classifier(ClassifierConfig.model_validate({"encoder": encoder, "labels": tuple("abcd")})),
        Regressor(RegressorConfig.model_validate({"encoder": encoder})),
    ):
        model(tokens)


def sliding() -> None:
    config = ConvClassifierConfig(vocab=V, labels=tuple("abcd"), width=D, sizes=(5, 5), filters=F)
    ConvClassifier(config)(torch.randint(0, V, (B, S)), None, Padded(torch.arange(S) < torch.tensor([[S], [4]])))


def reading() -> None:
    """BERT with its heads, with and without segments, and its blocks in int8."""
    model = Bert(BertConfig(vocab=V, width=D, heads=H, layers=1, hidden=F, context=40)).eval()
    tokens, segments = torch.randint(0, V, (B, S)), torch.randint(0, 2, (B, S))
    padded, packed = Padded(torch.arange(S) < torch.tensor([[S], [4]])), PackedTexts.of(torch.tensor([4, 2]), S, 4)
    x = model(tokens, segments, padded)
    for layout in (Unpadded(tokens), padded):
        layout.first(x), layout.last(x)
    packed.first(model(tokens[:1], segments[:1], packed)), packed.last(model(tokens[:1], segments[:1], packed))
    model.summarize(x, padded), model.masked_vectors(tokens, segments, padded, torch.tensor([1, 2]))
    model.words(x[0, :4])
    model.lens(x)
    model.follows(x[:, 0])
    small = int8(model)
    small(tokens)
    for part in small.modules():
        if isinstance(part, Int8Linear):
            whole = torch.randint(-127, 128, (len(part.step), D), dtype=torch.int8)
            PlainInt8(whole).product(torch.zeros(B * S, D, dtype=torch.uint8), part.step)


def remembering() -> None:
    """Memory networks of both kinds, in training with noise, and a bag of words, on stories with padding."""
    sentences, questions = torch.randint(1, V, (9, T)), torch.randint(1, V, (B, 4))
    stories = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [7, 8, 0, 1, -1, -1, -1]])
    labels = ("a", "b", "c")
    for more in ({}, {"tying": "layer_wise", "sentences": "bag"}):
        config = MemoryNetworkConfig.model_validate({"vocab": V, "labels": labels, "width": D} | more)
        MemoryNetwork(config).train()(sentences, stories, questions)
    BagOfWords(BagOfWordsConfig(vocab=V, labels=labels, width=D))(sentences, stories, questions)


def noise() -> None:
    gaussian(1, torch.tensor(0), torch.arange(B), (3, T, S))


def convolving() -> None:
    for layer in (Convolution(3, F, 3, padding=1), ConvRelu(3, F), ConvNorm(3, F), ConvNormRelu(3, F)):
        layer(torch.zeros(B, 3, 2 * T, 2 * S))
    block = Residual(torch.nn.Sequential(ConvNorm(F, F)), torch.nn.Identity())
    block(torch.zeros(B, F, 2 * T, 2 * S))
    with watch(block, "body.0.output"):
        block(torch.zeros(B, F, 2 * T, 2 * S))
    Inception(3, (3, 2, 4, 2, 5, 1), 5, 1e-3)(torch.zeros(B, 3, 2 * T, 2 * S))
    for size in (1, 3, 5, 7):  # as a GPU computes them, for few channels
        in_blocks(torch.zeros(B, 3, 2 * T, 2 * S), torch.zeros(F, 3, size, size), torch.zeros(F))


def in_patches() -> None:
    """Patches with both kinds of positions, of the size that they are made for, and of another."""
    for positions in (LearnedGrid, SinusoidGrid):
        patches, known = Patches(3, 32, 2), positions(1, (T, S), 32)
        for rows, columns in ((T, S), (S, 3)):
            x = torch.cat([torch.zeros(B, 1, 32), patches(torch.zeros(B, 3, 2 * rows, 2 * columns))], 1)
            known(x, (rows, columns))


def vision() -> None:
    for kind in ("resnet", "vit"):
        tiny(kind)
    receptive_fields(build(config_class("resnet").tiny()))


def connectors() -> None:
    state = torch.randn(B, 8)
    for connector in (Constant(8, 8), Forward(8, 8), Mlp(8, 8, 5), Stochastic(8, 8, 5)):
        connector.decode(connector.encode(state).mean)
    normal_log_density(state, state, normal_kl(state, state))
    kl_divergence(state, state), entropy(state)


def losses() -> None:
    x, weight = torch.randn(B * T, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
    targets = torch.randint(0, V, (B * T,))
    cross_entropy(x @ weight.mT, targets)
    cross_entropy(x @ weight.mT, targets, 0.1, weights=torch.rand(V))
    projected_cross_entropy(x, weight, targets).total.backward()


def searches() -> None:
    rows, width, room, vocab = 3, 2, 7, 11
    prefix, limit = torch.zeros(rows, 1, dtype=torch.long), torch.tensor([room, 5, room])
    rules = (
        MinLength(2, 0), SuppressTokens((3,)), VocabLimit(10), NoRepeatNgram(3), RepetitionPenalty(1.2),
        Temperature(0.9), TopK(9), TopP(0.9), ForcedPrefix((4,)),
    )  # fmt: skip

    def decoder(tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(*tokens.shape, vocab), state

    state = torch.zeros(rows, 5)
    drain(beam(decoder, state, prefix, limit, 0, beams=width, rules=rules))
    drain(greedy(decoder, state, prefix, limit, 0, rules=rules))
    drain(sample(decoder, state, prefix, limit, 0, seeds=range(rows), rules=rules))
    grouped_topk(torch.randn(rows, 3001), 2)


def row_by_row() -> None:
    """Greedy search and sampling in some of the slots, each row with settings of its own."""
    settings, slots = RowSettings.empty(9, 7, torch.device("cpu")), torch.tensor([4, 0, 8])
    given = (Sampling(), Sampling(temperature=0.7, top_k=3), Sampling(top_p=0.8))
    settings.put(slots.tolist(), [(one, seed, 0, 5) for seed, one in enumerate(given)], V)
    for method in ("greedy", "sample", "filter"):
        settings.next_token(torch.randn(3, V), slots, method)
        settings.next_token(torch.randn(3, V), slots, method, (SuppressTokens((3,)),))


def tiny(kind: str) -> None:
    """A model in its tiny size, used by its role; the functions above cover what is special to a model."""
    config = config_class(kind).tiny()
    model: Any = build(config).eval()
    tokens, real = torch.randint(0, V, (B, S)), torch.arange(S) < torch.tensor([[S], [4]])
    if config.role == "encoder":
        x = model(tokens, torch.zeros_like(tokens), Padded(real))
        model(tokens)
        model.words(x[0, :4])
        model.lens(x)
        if config.pairs:
            model.follows(x[:, 0])
        pooling: Any = build(config.under_head(pools=True))
        pooling.pool(x[:, 0])
    elif config.role == "seq2seq":
        model(tokens[:, :T], model.start(tokens, Padded(real)))
        x = model.read(tokens, tokens[:, :T])
        if isinstance(model, LogitLens):
            model.lens(x)
    elif config.role == "text_autoencoder":
        model(tokens[:, :T], model.start(model.encode(tokens, Padded(real)).mean))
        model.encode(tokens)
    elif config.role == "hierarchical":
        utterances, spoken = torch.randint(0, 23, (B, 4, S)), torch.ones(B, 4, S, dtype=torch.bool)
        model(tokens, select(model.start(utterances, spoken, torch.zeros(B, 5).long()), torch.arange(B)))
    elif config.role == "causal":
        model(tokens[:, :1], model(tokens, model.start(B, tokens.device))[1])
    elif config.role == "image_encoder":
        x = torch.randn(B, *config.input)
        model.train().training_logits(x)
        model(x), model.map(x), model.features(x)
    elif config.role == "glimpse_classifier":
        x = torch.randn(B, *config.input)
        model.train()(x), model.patches(x, model.look(x).places[:, 0])
    elif config.role == "paragraph_captioner":
        corner, some = 0.6 * torch.rand(B, 4, 2), torch.arange(4) < torch.tensor([[4], [3]])
        boxes = torch.cat([corner, corner + 0.3], -1)
        regions = model.look(torch.randn(B, *config.encoder.input), boxes, some)
        memory = model.remember(regions, tokens[:, None].expand(B, 4, S), real[:, None].expand(B, 4, S))
        plan, state = model.plan(memory, some, model.begin_paragraph(memory, some))
        model.plan(memory, some, state, torch.full((B, config.regions), -1))
        model.phrase_topics(regions)
        model(tokens, model.start(plan.topic))
    elif config.role == "style_transfer":
        styles = torch.tensor([0, 1])
        with torch.no_grad():
            soft = model.write(
                model.start(tokens, styles, Padded(real)),
                tokens[:, :1],
                3,
                torch.zeros(config.vocab).bool(),
                real.sum(1),
                1.0,
            )
        model(soft.words[:, :T], model.start(soft.words, styles, Padded(soft.real)))
        model(tokens[:, :T], model.start(tokens, styles))
        model.discriminator(soft.words, soft.real), model.discriminator(tokens, real)
    elif config.role in ("policy", "q_network"):
        x = torch.randn(B, config.inputs)
        model(x), model.value(x)
        if config.role == "q_network":
            model.target_values(x)
    elif config.role == "word_classifier":
        pools = get_args(type(config).model_fields["pool"].annotation)
        for pool in pools:
            build(config.model_copy(update={"pool": pool}))(tokens, None, Padded(real))
    else:
        raise AssertionError(f"say how a model is used whose role is {config.role}")


def sparse_blocks() -> None:
    """BigBird with and without extra tokens, and with the first block once more."""
    for more in ({"random_from": "seed"}, {"random_from": "seed", "global_tokens": 2}, {"last_mlp": True}):
        config = config_class("bigbird").tiny().model_copy(update={"window_blocks": 1} | more)
        tokens, real = torch.randint(0, V, (B, S)), torch.arange(S) < torch.tensor([[S], [4]])
        for count in (0, 1):
            model: Any = build(config.model_copy(update={"random_blocks": count}))
            model(tokens, None, Padded(real))
            model.block_kinds(S, 2)


class Counting(torch.nn.Module):
    """A user's module: tokens (B, T), or source and target -> logits (B, T, V)."""

    def forward(self, *tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(tokens[-1], V).float()


def own() -> None:
    config = GptConfig.tiny().model_copy(update={"vocab": V})
    causal = PlainCausal(Counting(), config)
    _, state = causal(torch.randint(0, V, (B, S)), causal.start(B, torch.device("cpu")))
    causal(torch.randint(0, V, (B, T)), state)
    translating = PlainSeq2Seq(Counting(), config)
    _, begun = translating(torch.randint(0, V, (B, S)), translating.start(torch.randint(0, V, (B, T))))
    translating(torch.randint(0, V, (B, T)), begun)


def in_regions() -> None:
    """A box of a map, pooled, and where it is."""
    boxes = torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.5, 0.6], [0.5, 0.1, 0.9, 0.4]]] * B)
    geometry(boxes)
    roi_pool(torch.randn(B, 11, T, S), boxes, 4)


def dialogues() -> None:
    """Replies with each kind of encoder, and with attention to the turns."""
    tiny: Any = config_class("hred").tiny()
    for changes in (
        {},
        {"encoder": {"kind": "transformer", "heads": 2, "layers": 1}},
        {"attention": {"feed": "output"}},
    ):
        model: Any = build(type(tiny).model_validate(tiny.model_dump() | changes))
        utterances, spoken = torch.randint(0, 23, (B, 4, S)), torch.ones(B, 4, S, dtype=torch.bool)
        model(torch.randint(0, 23, (4 * B, T)), model.start(utterances, spoken, torch.zeros(B, 5).long()))


def captioning() -> None:
    tiny: Any = config_class("captioner").tiny()
    recurrent = {"kind": "recurrent", "width": 16, "hidden": 20}
    for decoder in (
        recurrent,
        recurrent | {"attention": {"kind": "hard", "gate": False}},
        recurrent | {"attention": None},
        {"kind": "transformer", "width": 16, "heads": 2, "layers": 1, "hidden": 20},
    ):
        model: Any = build(type(tiny).model_validate(tiny.model_dump() | {"decoder": decoder}))
        x, tokens = torch.randn(B, *tiny.encoder.input), torch.randint(0, 23, (3 * B, T))
        model.train().read(x, tokens)
        with torch.inference_mode():
            model.eval()(tokens[:B], model.start(x))


def layered() -> None:
    """Encoders without attention, and what heads read of them."""
    for kind in ("rnn_encoder", "conv_encoder"):
        model: Any = build(config_class(kind).tiny().model_copy(update={"pooler": True}))
        ids, layout = torch.randint(0, V, (B, S)), Padded(torch.ones(B, S, dtype=torch.bool))
        x = model(ids, None, layout)
        model.summarize(x, layout)
        model.words(model.masked_vectors(ids, None, layout, torch.arange(3)).flatten(0, 1)[:4])
        model.lens(x)


def columns() -> None:
    """A table with a column of each type, its texts read in each way."""
    tiny: Any = config_class("tabular").tiny()
    encoder = config_class("bert").tiny().model_dump()
    for text in ({"kind": "mean"}, {"kind": "recurrent"}, {"kind": "convolution"}, encoder):
        model: Any = build(type(tiny).model_validate(tiny.model_dump() | {"text": text}))
        ids = torch.randint(4, 23, (B, T))
        model([ids, torch.randn(B, 3), torch.zeros(B, dtype=torch.long), torch.randn(B, 1, 16, 20)])


RUNS: dict[str, list[Callable[[], None]]] = {
    "captioner": [captioning],
    "tabular": [columns],
    "texts": [columns],
    "text_filters": [columns, sliding, layered],
    "encoder_model": [reading, layered],
    "rnn_encoder": [layered],
    "conv_encoder": [layered],
    "hred": [dialogues],
    "own": [own],
    "transformer": [models],
    "attention": [scores, models, with_attention, reading, ahead_alone],
    "masks": [models, reading, block_sparse],
    "sparse": [block_sparse],
    "block_values": [block_sparse],
    "scores": [scores, models, with_attention],
    "memory": [with_attention],
    "seq2seq": [with_attention],
    "losses": [losses],
    "connectors": [connectors],
    "regularizers": [connectors],
    "noise": [noise],
    "convolution": [convolving],
    "perceptron": [partial(tiny, "policy")],
    "patches": [in_patches],
    "regions": [in_regions],
    "image_model": [vision],
    "layer_graph": [vision],
    "recurrent": [recurrent],
    "rnn_lm": [recurrent],
    "gpt": [ahead_alone],
    "state": [models, ahead_alone, with_memory],
    "layouts": [models, reading, ahead_alone, sliding, layered],
    "relative": [relative],
    "xlnet": [two_streams],
    "bigbird": [sparse_blocks],
    "adaptive": [with_memory],
    "transformer_xl": [with_memory],
    "mix": [recurrent],
    "elmo": [recurrent],
    "gates": [structures],
    "graphs": [structures],
    "grids": [structures],
    "tree_lstm": [structures],
    "bert": [reading],
    "int8": [reading],
    "head": [classifying],
    "classifier": [classifying],
    "conv_classifier": [sliding],
    "memory_network": [remembering],
    "bag": [remembering],
    "tagger": [marking],
    "answerer": [marking],
    "rules": [searches],
    "search": [searches],
    "slots": [coming_and_going],
    "per_row": [row_by_row],
}
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "transformer": {"B": (B, 1), "S": (S,), "T": (T, S, 1), "D": (D,), "V": (V,)},
    "embedding": {"B": (B, 1), "T": (T, S, 1), "D": (D,), "V": (V,)},
    "losses": {"N": (B * T,), "D": (D,), "V": (V,)},
    "noise": {"B": (B,), "N": (3 * T * S,)},
    "own": {"R": (B,), "S": (S, 0), "T": (T, S), "V": (V,)},
    "convolution": {"B": (B,), "F": (F, 1, 2, 3, 4, 5), "Y": (2 * T,), "X": (2 * S,)},
    "perceptron": {"B": (B,), "F": (8, 6), "D": (3, 1)},
    "policy": {"B": (B,), "A": (3,)},
    "q_network": {"B": (B,), "A": (3,)},
    "patches": {"B": (B,), "D": (32,), "N": (T * S, 3 * S), "T": (T * S + 1, 3 * S + 1), "Y": (T, S), "X": (S, 3)},
    "recurrent": {"B": (B,), "T": (T, 1), "H": (F,)},
    "rnn_lm": {"B": (B,), "T": (T, 1), "D": (D,), "H": (F,), "V": (V,)},
    "memory": {"B": (B,), "R": (B, 3 * B), "T": (T, 1, 3), "S": (S,), "H": (F,), "M": (M, D)},
    "seq2seq": {"B": (B, 3 * B), "S": (S,), "T": (T, 1), "E": (D,), "H": (F,), "M": (M, D), "V": (V,)},
    "mix": {"B": (B,), "L": (4,), "T": (T,), "D": (2 * D,)},
    "elmo": {"B": (B,), "T": (T,), "D": (D,), "V": (V,)},
    "gates": {"H": (F,)},
    "graphs": {"H": (F,)},
    "grids": {"B": (B,), "Y": (T,), "X": (S,), "H": (F,)},
    "tree_lstm": {"H": (F,), "C": (11,), "K": (3,)},
    "bert": {"B": (B, 1), "T": (S,), "D": (D,), "V": (V,), "M": (4, B * S), "N": (B,)},
    "encoder_model": {"B": (B, 1), "T": (S,), "D": (D, 16), "V": (V, 23), "M": (4, B * S), "N": (B,)},
    "rnn_encoder": {"B": (B,), "T": (S,), "D": (16,), "N": (B,)},
    "conv_encoder": {"B": (B,), "T": (S,), "D": (16,)},
    "int8": {"M": (B * S, 1), "D": (D, F), "E": (3 * D, D, F)},
    "head": {"B": (B,), "T": (S,), "D": (D,), "N": (B,)},
    "classifier": {"D": (D,), "N": (B,), "C": (4,)},
    "conv_classifier": {"B": (B,), "T": (S,), "D": (D,), "F": (F,), "P": (S + 4,), "K": (2 * F,), "C": (4,)},
    "memory_network": {"B": (B,), "R": (9, B), "S": (S,), "W": (T, 4), "D": (D,), "C": (3,)},
    "bag": {"B": (B,), "R": (9,), "S": (S,), "D": (D,), "C": (3,)},
    "rnn_classifier": {"B": (B,), "T": (S,), "H": (8,), "C": (2,)},
    "transformer_classifier": {"B": (B,), "T": (S,), "D": (16,), "C": (2,)},
    "tagger": {"B": (B,), "T": (S,), "F": (4 * D,), "E": (M,), "M": (5,), "C": (3,)},
    "answerer": {"B": (B,), "T": (S,), "N": (B,), "P": (3,)},
    "xlnet": {
        "B": (B,),
        "T": (S, T, S + T, M + S),
        "G": (T,),
        "Q": (S, S + T),
        "M": (M, 4, B * S),
        "S": (S, M + S),
        "P": (2 * S - 1, M + 2 * S - 1),
        "D": (D,),
        "H": (H,),
        "K": (K,),
        "V": (V,),
        "N": (B,),
    },
    "relative": {
        "B": (B,),
        "H": (H,),
        "T": (T, 192),
        "G": (96,),
        "P": (S + T - 1, 16, 304),
        "D": (D,),
        "S": (S,),
        "K": (K,),
    },
    "adaptive": {"B": (B,), "T": (T,), "N": (B * T,), "D": (D,), "V": (V,)},
    "transformer_xl": {
        "B": (B, 1),
        "T": (T, 2 * T, S + T, 2 * T - 1, 3 * T - 1, S + 2 * T - 1),
        "S": (T, 2 * T, S + T),
        "D": (D,),
        "H": (H,),
        "K": (K,),
        "V": (V,),
        "P": (2 * T - 1, 3 * T - 1, S + 2 * T - 1),
    },
    "slots": {"R": (3, B), "H": (H,), "S": (S + 1, S + 2), "K": (K,)},
    "per_row": {"R": (3,), "V": (V,)},
    "rules": {"R": (3, 6), "V": (11,), "L": (7,)},
}


def name(path: Path) -> str:
    """The name of a file; a model's is named by its folder."""
    return path.parent.name if path.stem == "model" else path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_shape_comments_are_true_and_reached(path: Path) -> None:
    def run() -> None:
        for part in RUNS.get(name(path), [partial(tiny, name(path))] if name(path) in MODELS else [models]):
            part()

    known = statements(path)
    if not known:
        return
    seen = check(path, run, SIZES.get(name(path)))
    wrong = [f"line {o.line}: says ({o.claimed}), is {o.found}" for o in seen if not o.fits]
    assert wrong == []
    text = path.read_text(encoding="utf-8").splitlines()
    lines = {s.last for (name, _), group in known.items() if name not in GPU for s in group}
    lines -= {line for line in lines if any(f"= {name}(" in text[line - 1] for name in GPU)}
    assert sorted(lines - {o.line for o in seen}) == [], "these lines were not reached"
