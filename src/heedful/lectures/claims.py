"""The claim sheet: what the lectures that Heedful implements say, row by row, and the test that proves each row here.

The lectures are five university decks on attention, the Transformer and BERT. Their statements are numbered by section;
the sheet lists the rows that a test proves on the shipped code, and says how many there are in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Section(NamedTuple):
    """A part of the lectures and how many statements it makes."""

    letter: str
    title: str
    rows: int


class Claim(NamedTuple):
    """One proven statement, the file of its test, how a contradiction was read, and the test that sees it in a page."""

    id: str
    statement: str
    test: str
    reading: str = ""
    page: str = ""
    also: tuple[str, ...] = ()  # more files with tests of it


SECTIONS = (
    Section("A", "Attention", 18),
    Section("B", "Recurrent encoder-decoders", 6),
    Section("C", "Blocks of the Transformer", 17),
    Section("D", "Positions", 7),
    Section("E", "The whole Transformer: training and decoding", 8),
    Section("F", "BERT", 26),
    Section("G", "GPT, XLNet and their family", 10),
    Section("H", "Attention that costs less", 3),
    Section("I", "Vision and captions", 12),
    Section("J", "Recurrent networks", 12),
    Section("K", "Autoencoders, PCA, t-SNE", 13),
    Section("L", "Word vectors and transfer", 4),
    Section("M", "A stack of exchangeable parts", 25),
    Section("N", "Teaching devices", 5),
    Section("X", "Misprints and contradictions", 13),
)

ATTENTION, TRANSFORMER = "tests/claims/test_attention.py", "tests/claims/test_transformer.py"
POSITIONS, DECODING = "tests/claims/test_positions.py", "tests/claims/test_decoding.py"
TRAINING, RECURRENT = "tests/claims/test_training.py", "tests/claims/test_recurrent.py"
SEQ2SEQ, FIGURES = "tests/claims/test_seq2seq.py", "tests/claims/test_recurrent_figures.py"
STRUCTURES, ELMO = "tests/claims/test_recurrent_structures.py", "tests/claims/test_elmo.py"
PRETRAINING, FINETUNING = "tests/claims/test_bert_pretraining.py", "tests/claims/test_finetuning.py"
AUTOENCODERS, MAPS = "tests/claims/test_autoencoders.py", "tests/claims/test_autoencoders_maps.py"
VIEWS, LINEAR = "tests/claims/test_autoencoders_views.py", "tests/claims/test_autoencoders_linear.py"
IMAGES = "tests/claims/test_autoencoders_data.py"
SPANS, EXCHANGE, BERT = "tests/claims/test_bert_spans.py", "tests/claims/test_exchange.py", "tests/claims/test_bert.py"
GPT, SCALING = "tests/claims/test_gpt.py", "tests/claims/test_scaling.py"
GENERATION, VECTORS = (
    "tests/claims/test_next_word.py",
    "tests/claims/test_word_vectors.py",
)
# What is seen in the explorer's page.
PAGE, STEPS_PAGE = "tests/explore/test_heads.py", "tests/explore/test_steps.py"
POSITIONS_PAGE, NEXT_PAGE = "tests/explore/test_positions.py", "tests/explore/test_next.py"
MAP_PAGE, BEAM_PAGE = "tests/explore/test_map.py", "tests/explore/test_beam.py"
# Tests beside the code that prove a row on it.
TRANSLATION, TREES = "tests/tasks/test_translation.py", "tests/models/test_tree_lstm.py"
RECONSTRUCT, FILTERS = "tests/cli/test_reconstruct.py", "tests/models/test_conv_classifier.py"
TEXT_CLASSES = "tests/tasks/test_text_classification_runs.py"

CLAIMS = (
    Claim(
        "A1",
        "Attention returns the sum of values weighted by softmaxed scores; the three widths may differ.",
        ATTENTION,
    ),
    Claim("A2", "The dot-product score is q . k, and needs equal widths.", ATTENTION),
    Claim(
        "A3",
        "The scaled score divides by the root of the width, so that unit inputs give scores of variance 1.",
        ATTENTION,
        "X3",
    ),
    Claim("A4", "The general score is q W k; with W = 1 it is the dot product.", ATTENTION),
    Claim("A5", "The additive score is one hidden tanh layer on key and query together, with one output.", ATTENTION),
    Claim("A6", "The cosine score does not see how long its vectors are.", ATTENTION),
    Claim("A7", "Location scores depend on the query alone: other keys leave the weights as they are.", ATTENTION),
    Claim("A8", "Six scores go through one and the same layer.", ATTENTION),
    Claim(
        "A9", "Queries and keys make the weights; values make the context, through projections of their own.", ATTENTION
    ),
    Claim("A10", "The translation step with scores 13, 9, 9 has weights 0.96, 0.02, 0.02.", ATTENTION),
    Claim("A11", "Products 112 and 96 over 8 are 14 and 12, with weights 0.88 and 0.12.", ATTENTION),
    Claim("A12", "The toy example of three tokens has the printed scores and outputs.", ATTENTION),
    Claim(
        "A13",
        "Hard attention draws where it looks and learns from a lower bound of the likelihood; soft attention has "
        "gradients from end to end.",
        SEQ2SEQ,
    ),
    Claim("A14", "Local attention is a window, and is global attention when the window covers everything.", ATTENTION),
    Claim(
        "A15", "Self-attention reads its own input; cross-attention takes keys and values from elsewhere.", ATTENTION
    ),
    Claim("A16", "One block attends to tokens, memory slots and feature maps, and can be applied again.", ATTENTION),
    Claim("A17", "Self-attention maps n vectors to n vectors and knows no order.", ATTENTION),
    Claim(
        "A18",
        "Attention reaches over any distance, keeps a vector for each word instead of one for all, and shows what an "
        "output depends on.",
        FIGURES,
    ),
    Claim("B1", "Without attention one vector stands for the source: quality falls with its length.", FIGURES),
    Claim("B2", "The decoder's memory is what the encoder's last recurrent layer gives, [B, S, H].", SEQ2SEQ),
    Claim("B3", "The context is joined to the embedding and fed to the decoder's first layer.", SEQ2SEQ),
    Claim("B4", "The context is joined to the hidden state, and a feed-forward layer on both gives the word.", SEQ2SEQ),
    Claim("B5", "The learned alignment is a diagonal when copying, and the other one when reversing.", FIGURES),
    Claim("B6", "Attention has five stages, from its inputs to the sum, each seen by its name.", SEQ2SEQ),
    Claim("C1", "A head has three matrices, for queries, keys and values.", TRANSFORMER),
    Claim("C2", "l heads have 3 l matrices of their own, and their outputs are joined.", TRANSFORMER),
    Claim("C3", "The output matrix mixes the heads; it can be left out.", TRANSFORMER, "X6"),
    Claim("C4", "8 heads of width 64 make 512, and scores are divided by 8.", TRANSFORMER),
    Claim("C5", "The dense layer of a block is the same map at every position.", TRANSFORMER),
    Claim("C6", "The feed-forward layer is two convolutions of size 1 with a ReLU between them.", TRANSFORMER),
    Claim("C7", "Add & norm sums first, then norms over the last axis, unlike batch norm.", TRANSFORMER),
    Claim("C8", "An encoder block maps 512 x m to 512 x m.", TRANSFORMER),
    Claim("C9", "A decoder block looks back, then across, then goes through its dense layer: 512 x t.", TRANSFORMER),
    Claim("C10", "6 + 6 blocks that share no weights have 44,138,496 parameters, the embedding apart.", TRANSFORMER),
    Claim("C11", "A target position sees no later one: the mask, its picture, and its effect.", TRANSFORMER),
    Claim("C12", "Attention stands in three places: encoder, masked decoder, and between them.", TRANSFORMER),
    Claim("C13", "A Transformer and a recurrent encoder-decoder of one size differ in three places.", TRANSFORMER),
    Claim("C14", "Two encoder and two decoder blocks make a working model.", TRANSFORMER),
    Claim("C16", "With 1, 2 or 8 heads, each has a view of its own of the word `it`.", TRANSFORMER, page=PAGE),
    Claim("C17", "Where the word `it` looks in a published model, in the sentence of the tired animal.", PAGE),
    Claim("D1", "Sinusoids follow their formula, and a shift in place turns each pair of columns.", POSITIONS, "X1"),
    Claim("D2", "The picture of 20 places by 512 columns.", POSITIONS, page=POSITIONS_PAGE),
    Claim("D3", "256 sines beside 256 cosines: the same columns in another order.", POSITIONS, "X8"),
    Claim("D4", "Waves of chosen columns differ in frequency and offset.", POSITIONS, page=POSITIONS_PAGE),
    Claim("D5", "Positions can be fixed, learned or absent.", POSITIONS),
    Claim(
        "D6",
        "Without positions a causal language model comes near to those with them, and a probe reads places from it.",
        GPT,
        "A small replication: 0.390 nats a letter where learned positions have 0.363 (`heedful figure nopos`).",
    ),
    Claim("D7", "A linear probe reads the place off the sinusoids, and their products tell distances.", POSITIONS),
    Claim("E1", "Six encoder blocks keep 512 x m; the decoder then goes token by token.", DECODING),
    Claim("E2", "A sentence, or a text, is as likely as the product of its steps.", DECODING),
    Claim("E3", "With a cache, input t is query, key and value, and earlier inputs are keys and values.", DECODING),
    Claim(
        "E4",
        "The logits are as many as the vocabulary has words, and the largest is looked up.",
        DECODING,
        page=NEXT_PAGE,
    ),
    Claim("E5", "Training minimises cross-entropy.", DECODING, also=(TRANSLATION,)),
    Claim("E6", "Greedy decoding takes the largest, and is beam search with one beam.", DECODING),
    Claim(
        "E7", "Beam search keeps k choices and returns t paths; with enough beams it finds the best string.", DECODING
    ),
    Claim(
        "E8",
        "The Transformer translates better than a recurrent net with attention.",
        SEQ2SEQ,
        "On Multi30k, with the same data, vocabulary, search and 4,000 steps, for each of three seeds. These runs were "
        "recorded on a GPU (`make comparison`, docs/results.md); the tests hold that both models get the same. Over a "
        "few hundred steps, and on number words, the recurrent net is ahead.",
    ),
    Claim(
        "F1", "BERT is an encoder without a decoder: what stands to the right changes what is said of the left.", BERT
    ),
    Claim("F2", "BERT base has 12 blocks, 768 numbers and 12 heads: 109,482,240 parameters.", EXCHANGE),
    Claim("F3", "BERT large has 24 blocks, 1,024 numbers and 16 heads: 335,141,888 parameters.", EXCHANGE, "X4"),
    Claim(
        "F4",
        "15 % of the tokens are to be told; the loss is their cross-entropy, and nothing else counts.",
        PRETRAINING,
    ),
    Claim(
        "F5", "Of these 80 % are masked, 10 % are exchanged, 10 % stay; special tokens are never chosen.", PRETRAINING
    ),
    Claim(
        "F6",
        "Half of the pairs follow each other, half are of different documents; the first token tells.",
        PRETRAINING,
    ),
    Claim("F7", "[CLS] A [SEP] B [SEP]; token, segment and position embeddings are added.", PRETRAINING, "X7"),
    Claim(
        "F8",
        "Calculus, Newton and Leibniz, the panda: true, branch, was; false, south.",
        PRETRAINING,
    ),
    Claim(
        "F9",
        "The loss is the sum of those for the pair and for the hidden words.",
        PRETRAINING,
        "As published, of the mean over pairs and the mean over hidden words; the deck adds the loss of each hidden "
        "word, which is `task.objective: sum`.",
    ),
    Claim(
        "F10",
        "Telling next sentences helps the embeddings and the attention.",
        PRETRAINING,
        "A small ablation: with the task a linear probe on the encoder tells whether two texts belong together, "
        "without it (model.next_sentence=false) hardly. What it does for other tasks is not shown.",
    ),
    Claim(
        "F11",
        "BERT learns from large text without labels.",
        PRETRAINING,
        "Any text, of any size: token files are read from the disk as needed. The published text is not shipped.",
    ),
    Claim(
        "F12",
        "Pre-training took 16 (base) and 64 (large) TPUs four days: a plausible share of their speed.",
        BERT,
        "X5",
    ),
    Claim(
        "F13",
        "A dense layer on the first token's vector tells the class, number or choice of a text or a pair: nine tasks.",
        FINETUNING,
    ),
    Claim(
        "F14", "Tagging: each token's vector, special ones and tails of words left out, goes to a dense layer.", SPANS
    ),
    Claim("F15", "Answers: softmax over the passage alone for start and end, and the best span of all.", SPANS),
    Claim("F16", "Fine-tuning adds one output layer and nothing else.", FINETUNING),
    Claim("F17", "BERT is a denoising autoencoder: the same loop learns to undo what counters spoilt.", AUTOENCODERS),
    Claim(
        "F18", "Every layer's output is a feature, and a word's vector depends on its sentence.", BERT, page=MAP_PAGE
    ),
    Claim(
        "F19",
        "Which layers serve a tagger best, six rows: from the embeddings to the last four joined.",
        SPANS,
        "Six recipes in one, with a frozen encoder and an LSTM as published. The figures are BERT-base's, which is not "
        "shipped; with MiniLM a slow test finds four rows in the printed order: last, second to last, sum of the last "
        "four, the last four joined. There the embeddings are better than the last layer, and all layers than the "
        "last four.",
    ),
    Claim("F20", "The table of GLUE: 45 cells, and each average is the mean of nine numbers.", FINETUNING, "X12"),
    Claim(
        "F21",
        "BERT was tried on twelve tasks.",
        FINETUNING,
        "Each is learned from a file of its own make; of SQuAD v2.0 the questions that have an answer, others are "
        "refused. The published results are F20's; real files of six tasks are trained on in docs/results.md.",
    ),
    Claim(
        "F22",
        "[MASK] is not seen in fine-tuning; masked words are predicted independently of each other; attention grows "
        "with the square of the length, where an RNN grows in proportion.",
        BERT,
    ),
    Claim(
        "F23",
        "Occurrences of a word can be seen as a map, its principal components, layer by layer.",
        BERT,
        page=MAP_PAGE,
    ),
    Claim("F24", "Pre-training and fine-tuning are two recipes that share one checkpoint.", FINETUNING),
    Claim("F25", "BERT as a feature extractor makes a classifier of sentences.", FINETUNING),
    Claim("F26", "ELMo gives a word vectors of its sentence: both directions, and a learned mix of layers.", ELMO),
    Claim(
        "G1",
        "GPT reads from left to right: 12 blocks, 768 numbers and 12 heads, 116,534,784 parameters.",
        GPT,
    ),
    Claim(
        "G2",
        "GPT-2 has 124,439,808 to 1,557,611,200 parameters, more than ten times those of GPT.",
        GPT,
        "Settings, counts and logits; its text of eight million pages is not published.",
    ),
    Claim(
        "G3",
        "GPT-3 has 175 billion parameters, ten times the largest model before it.",
        GPT,
        "By its published settings 174,604,259,328. It is counted, not trained; what it cost is not ours to check.",
    ),
    Claim(
        "G6",
        "A language model, XLNet and BERT differ in what each word may see: three masks side by side.",
        POSITIONS_PAGE,
        "In XLNet words see by an order, and one that is asked for does not see itself: both readings are drawn.",
    ),
    Claim(
        "G8",
        "To predict the next word is directional: a causal model sees one side of a gap, a masked one both.",
        GENERATION,
    ),
    Claim(
        "G9",
        "The loss is a power law in size, data and compute: a straight line in log-log.",
        SCALING,
        "On sweeps of small models, which docs/results.md has; intervals say how sure an exponent is.",
    ),
    Claim("J1", "The plain RNN is h' = tanh(W_hh h + W_hx x), without a bias.", RECURRENT),
    Claim(
        "J2",
        "Over many steps gradients explode or vanish, as the largest singular value is above or below 1.",
        FIGURES,
        "Below 1 they vanish; above 1 they can explode, and do where tanh is not flat.",
    ),
    Claim(
        "J3",
        "A gradient is scaled down when its norm is too big.",
        TRAINING,
        "By the norm, as the text says; the code beside it uses the squared norm, which is there too (X2).",
    ),
    Claim("J4", "A word that lies far back is recalled by an LSTM longer than by a plain RNN.", FIGURES),
    Claim("J5", "The LSTM has six equations, its gates on [h, x], and 4 (h (h + x) + h) parameters.", RECURRENT),
    Claim("J6", "The forget gate resets the cell, the input gate writes to it, the output gate reads it.", RECURRENT),
    Claim("J7", "Back along the cell there is no matrix: the gradient is the product of forget gates.", RECURRENT),
    Claim("J8", "A bidirectional net joins its two states, and padding changes neither.", RECURRENT),
    Claim(
        "J9",
        "A tree's node has any number of children; with one each, a Tree-LSTM is an LSTM.",
        STRUCTURES,
        also=(TREES,),
    ),
    Claim("J10", "In two dimensions a state depends on those above and to the left; one row is an LSTM.", STRUCTURES),
    Claim("J11", "On graphs: a path is an LSTM, and the names of nodes do not matter.", STRUCTURES),
    Claim("J12", "A ConvNet takes a fixed number of steps, an RNN as many as its input is long.", FIGURES),
    Claim("K1", "PCA: V with orthonormal columns, x~ = V V^T x; as by the SVD, and as scikit-learn's.", MAPS),
    Claim("K2", "An autoencoder minimizes the squared error; a linear one finds the subspace of PCA.", LINEAR),
    Claim("K3", "MNIST: 60,000 and 10,000 images of 784 numbers, labels 0 to 9.", IMAGES),
    Claim("K4", "784-100-20-100-784: 78,500 + 2,020 + 2,100 + 79,184 = 161,804 parameters.", AUTOENCODERS),
    Claim("K5", "Two ways to build a net, one after the other and place by place, give the same one.", AUTOENCODERS),
    Claim(
        "K6",
        "RMSprop, batches of 128, 50 epochs: losses 0.0390, 0.0281 ... 0.0145, 0.0145.",
        AUTOENCODERS,
        "Within 10 %, on MNIST: epoch 1 for three seeds and epoch 2 in every run of the tests, epoch 50 in the slow "
        "ones, where it comes below 0.0145. For the two kinds of RMSprop see X13.",
    ),
    Claim("K7", "The encoder alone: 80,520 parameters, shared, and (10000, 20) numbers.", AUTOENCODERS),
    Claim(
        "K8",
        "t-SNE of the codes is a good map; a bottleneck of two is not as good; t-SNE of the pixels is slow.",
        MAPS,
        "On MNIST, after 300 steps. No test decides by the clock: maps are timed, and docs/results.md has the times, "
        "784 pixels 1.3 times as long as codes of 20.",
    ),
    Claim("K9", "The convolutional net: 1,185 parameters, 28-14-7-4-8-16-14-28, 7 to 4 by pooling.", AUTOENCODERS),
    Claim(
        "K10",
        "Noise of 0.5 on each pixel, clipped to [0, 1]; 28,353 parameters; losses 0.0293, 0.0162, 0.0144 ... 0.0106.",
        AUTOENCODERS,
        "The losses of epochs 1 to 3 within 10 %, by slow tests alone; those in every run train the first 60 steps. "
        "Epoch 50 was recorded: 0.0106 and 0.0107 (docs/results.md). For the two kinds of RMSprop see X13.",
    ),
    Claim(
        "K11",
        "Images beside what is made of them: input, PCA, dense, convolutional; noisy and restored.",
        VIEWS,
        also=(RECONSTRUCT,),
    ),
    Claim("K12", "Pooling keeps the largest number of a square, upsampling repeats it.", VIEWS),
    Claim("K13", "The tables of layers, with shapes and parameters, trainable and not.", AUTOENCODERS),
    Claim("L1", "word2vec and GloVe are matrices with a row for each word, here 20 words by 10 columns.", VECTORS),
    Claim("L2", "Trained features may be kept frozen, or tuned with the rest.", FINETUNING),
    Claim("L3", "A static vector is the same in every sentence, a contextual one is not.", BERT),
    Claim("L4", "All layers but the last are a feature extractor, whose output layer can be exchanged.", FINETUNING),
    Claim("M17", "An executor runs the training: it tells what happens, and ends on conditions.", TRAINING),
    Claim("M18", "The trainer has an optimizer, a decay of the learning rate, and gradient clipping.", TRAINING),
    Claim(
        "M20",
        "embedding_init with a file and read_fn, load_word2vec or load_glove, and a Conv1D classifier over it.",
        VECTORS,
        also=(FILTERS, TEXT_CLASSES),
    ),
    Claim("M21", "The original TensorFlow checkpoint of BERT is read, and one line of a program changes.", EXCHANGE),
    Claim(
        "M22",
        "A Transformer encoder and a recurrent decoder with attention make one model, and train on labels[:, 1:].",
        SEQ2SEQ,
    ),
    Claim(
        "N2",
        "The slides step through attention and decoding: here a player does, with the numbers of one's own model.",
        STEPS_PAGE,
        also=(BEAM_PAGE,),
    ),
    Claim(
        "X1",
        "One deck prints 10000^(2jd) under the cosine.",
        POSITIONS,
        "A misprint for 10000^(2j/d), as another deck has it; with it, all columns but the first would stand still.",
    ),
    Claim(
        "X2",
        "One deck clips gradients by the square of their norm.",
        TRAINING,
        'The norm itself is used; `clip(..., rule="squared")` gives the printed rule.',
    ),
    Claim(
        "X3",
        "One deck scales the dot product by the length of the key, another by its dimension.",
        ATTENTION,
        "The dimension; any other rule can be given as the `score`.",
    ),
    Claim(
        "X4",
        "The decks give BERT large 235, 340 and 240 million parameters.",
        EXCHANGE,
        "335,141,888 without heads, 336,226,108 with them: 340 is the published, rounded figure.",
    ),
    Claim(
        "X5",
        "One deck counts 16 and 64 TPUs, another four pods of 256 chips.",
        BERT,
        "16 and 64 chips, as the paper is usually read; `heedful figure cost` states the unit and shows both.",
    ),
    Claim(
        "X6",
        "One deck joins the heads without an output matrix, three with one.",
        TRANSFORMER,
        "With it; `MultiHead(..., output=False)` leaves it out.",
    ),
    Claim(
        "X7",
        "One deck ends a pair without [SEP], two with it.",
        PRETRAINING,
        "With it; `task.last_sep: false` pre-trains without it.",
    ),
    Claim(
        "X8",
        "Formulas weave sines and cosines, a figure shows them in halves.",
        POSITIONS,
        "Woven (`sinusoid`); `sinusoid_halves` is the other. A model trained with one fails silently with the other.",
    ),
    Claim(
        "X9",
        "One deck says that the forget gate decides what is removed from the hidden state.",
        RECURRENT,
        "From the cell, as the equation beside it says.",
    ),
    Claim(
        "X10",
        "One deck says that a query has the width of the values.",
        ATTENTION,
        "Of the keys; values may have any width.",
    ),
    Claim(
        "X11", 'A table calls a row "first layer / embedding".', SPANS, "It is the output of the embeddings, layer 0."
    ),
    Claim(
        "X12", "In a row of the GLUE table QNLI reads 79.9.", FINETUNING, "The average still rounds to what is printed."
    ),
    Claim(
        "X13",
        "The losses of the autoencoders do not come from the settings printed with them, in today's Keras.",
        AUTOENCODERS,
        "They do in the Keras of that time: until 2.10 RMSprop added epsilon to the root, since then under it. Both "
        "can be set here (eps_place), and an epoch on MNIST gives what was recorded of Keras with each.",
    ),
)


def sheet() -> list[Claim]:
    """Every proven row, in the order of the sections."""
    return list(CLAIMS)


def render(claims: Iterable[Claim]) -> str:
    """The sheet as Markdown: how much of each section is proven, then the rows themselves."""
    proven: dict[str, list[Claim]] = {section.letter: [] for section in SECTIONS}
    for claim in claims:
        proven[claim.id[0]].append(claim)
    total = sum(section.rows for section in SECTIONS)
    lines = [
        "# Claim sheet",
        "",
        "What the lectures that Heedful implements say, and which of it a test proves on the shipped code. Each test",
        'carries the ids of its rows, as in `@pytest.mark.claim("A11")`.',
        "",
        "| | section | proven | of |",
        "|---|---|---:|---:|",
        *(f"| {s.letter} | {s.title} | {len(proven[s.letter])} | {s.rows} |" for s in SECTIONS),
        f"| | all | {sum(map(len, proven.values()))} | {total} |",
    ]
    for section in SECTIONS:
        if rows := proven[section.letter]:
            lines += [
                "",
                f"## {section.letter}. {section.title}",
                "",
                "| id | claim | reading | test |",
                "|---|---|---|---|",
            ]
            lines += [f"| {c.id} | {c.statement} | {_reading(c)} | {_tests(c)} |" for c in rows]
    return "\n".join(lines) + "\n"


def _reading(claim: Claim) -> str:
    return f"see {claim.reading}" if claim.reading.startswith("X") else claim.reading


def _tests(claim: Claim) -> str:
    tests = ", ".join(map(_link, (claim.test, *claim.also)))
    return f"{tests}; in the page: {_link(claim.page)}" if claim.page else tests


def _link(test: str) -> str:
    return f"[{test.rpartition('/')[2]}](../{test})"
