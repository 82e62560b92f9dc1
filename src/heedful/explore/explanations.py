"""What the parts of models do: a sentence, an equation, and the views that show it, by the class of the module."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """The name of a part, one sentence about it, its equation, and the views that show it, the best first."""

    title: str
    about: str
    equation: str
    views: tuple[str, ...] = ()


HEADS = ("heads", "grid", "steps", "ablation", "blocks", "image", "caption", "hops")
LAYERS = ("lens", "heads", "recurrent", "map", "image", "reconstruct", "source")
TABLES = ("map", "source")
PLACES = ("positions", "source")
STATES = ("recurrent", "caption", "paragraph", "dialogue", "source")
PIXELS = ("image", "reconstruct", "caption", "glimpses", "paragraph")
OUTPUTS = ("next", "fill", "classifier", "image", "caption", "agent", "ablation", "source")

EMBEDDING = Explanation("Embedding", "Looks up the vector of each token in a table.", "x = E[token]", TABLES)
TIED = Explanation(
    "Embedding", "Looks up the vector of each token; the same table turns the last vectors into logits.",
    "x = E[token],  logits = h Eᵀ", TABLES,
)  # fmt: skip
SELF = Explanation(
    "Multi-head attention", "Every token gathers the values of others, weighted by how well queries and keys match.",
    "head = softmax(Q Kᵀ / √d) V", HEADS,
)  # fmt: skip
ENCODER_BLOCK = Explanation(
    "Encoder block", "Attention mixes the tokens, then a feed-forward layer changes each one; both are added to x.",
    "x ← x + attention(x),  x ← x + mlp(x)", LAYERS,
)  # fmt: skip
LINEAR = Explanation("Linear layer", "Multiplies each vector by a matrix and adds a bias.", "y = x Wᵀ + b", OUTPUTS)
CONVOLUTION = Explanation(
    "Convolution",
    "Slides small filters over the input; each writes one channel of the output.",
    "y = W ∗ x + b",
    PIXELS,
)
POOL = Explanation("Max pooling", "Keeps the largest value of each small window.", "y = max over a window of x", PIXELS)
ENCODER = Explanation(
    "Encoder", "Reads the whole text and gives a vector for each token.", "x₁ … x_T → h₁ … h_T", LAYERS
)
IMAGES = Explanation(
    "Image encoder", "Reads an image and gives a map of features.", "image → features", PIXELS
)  # fmt: skip
STACK = Explanation("Recurrent layers", "Layers over time, one above the other.", "h_t = RNN(x_t, h_{t−1})", STATES)
DENSE = Explanation("Layers", "Layers one after the other.", "y = f_n(… f_1(x))", LAYERS)
PERCEPTRON = Explanation(
    "Perceptron", "A few linear layers with an activation in between.", "y = W₂ f(W₁ x + b₁) + b₂", OUTPUTS
)

EXPLANATIONS: dict[str, Explanation] = {
    # tokens and positions
    "Embedding": EMBEDDING,
    "WordVectors": TIED,
    "TiedEmbedding": TIED,
    "AdaptiveEmbedding": Explanation(
        "Adaptive embedding", "Looks up frequent tokens in wide tables and rare ones in narrow tables.",
        "x = √D · P_c E_c[token]", TABLES,
    ),
    "MeanOfWords": Explanation("Mean of words", "Averages the vectors of all words.", "x = (1/T) Σ E[token]", TABLES),
    "LearnedPositions": Explanation(
        "Positions", "Adds a trained vector for each place, so that order matters.", "x ← x + P[t]", PLACES
    ),
    "FixedPositions": Explanation(
        "Positions", "Adds waves of several lengths for each place, so that order matters; nothing is trained.",
        "P[t, 2i] = sin(t / 10000^(2i/D)),  P[t, 2i+1] = cos(…)", PLACES,
    ),
    "LearnedGrid": Explanation(
        "Positions", "Adds a trained vector for each place of the image.", "x ← x + P[row, column]", PLACES
    ),
    "SinusoidGrid": Explanation(
        "Positions", "Adds fixed waves for each row and column of the image.", "x ← x + P[row, column]", PLACES
    ),
    "Rotary": Explanation(
        "Rotary positions", "Turns queries and keys by an angle that grows with the place.",
        "q · k depends on t − t' alone", PLACES,
    ),
    "Patches": Explanation(
        "Patches", "Cuts the image into squares and maps each one to a vector.", "x = W patch + b", PIXELS
    ),
    "ParameterList": Explanation("Trained vectors", "Vectors that are inputs themselves.", "x = p", ("source",)),
    # attention
    "MultiHead": SELF,
    "SelfAttention": SELF,
    "RelativeAttention": Explanation(
        "Relative attention", "Attention that scores contents and distances apart.",
        "score(i, j) = ((q_i + u)·k_j + (q_i + v)·r_{i−j}) / √d", HEADS,
    ),
    "Biases": Explanation(
        "Attention biases", "Added to every query: one for contents, one for distances.", "q + u,  q + v", HEADS
    ),
    "Projection": Explanation(
        "Projection of the length", "Shortens keys and values, so that attention costs less.", "K ← E K,  V ← F V",
        HEADS
    ),
    "MemoryAttention": Explanation(
        "Attention", "The decoder weighs the encoder's vectors by a score, and reads their sum.",
        "context = Σ softmax(score(q, k_s)) v_s", ("alignment", *HEADS),
    ),
    "Additive": Explanation(
        "Additive score", "Scores a query and a key by a small network.", "v · tanh(W_q q + W_k k)",
        ("alignment", *HEADS),
    ),
    "General": Explanation(
        "General score", "Scores a query and a key by a matrix between them.", "q W k", ("alignment", *HEADS)
    ),
    "Location": Explanation(
        "Location score", "Scores a place by the query alone.", "(W q)_s", ("alignment", *HEADS)
    ),
    "PredictiveSpan": Explanation(
        "Local attention", "Guesses where to look, and attends around it.", "p = S σ(v · tanh(W q))",
        ("alignment", *HEADS),
    ),
    "Gate": Explanation("Gate", "How much of the context the next word uses.", "β = σ(w · h)", ("caption",)),
    "Hop": Explanation(
        "Hop", "A query reads the sentences that match it.", "o = Σ softmax(u · m_i) c_i", ("hops",)
    ),
    "Memory": Explanation(
        "Memory", "A vector for each sentence of a story, of its words and its age.", "m_i = Σ l_j A x_ij + T(i)",
        ("hops",),
    ),
    # blocks
    "EncoderBlock": ENCODER_BLOCK,
    "Block": Explanation(
        "Block", "Attention to earlier tokens, then a feed-forward layer; both are added to x.",
        "x ← x + attention(x),  x ← x + mlp(x)", LAYERS,
    ),
    "DecoderBlock": Explanation(
        "Decoder block", "Attention to what is written, then to the source, then a feed-forward layer.",
        "x ← x + self(x),  x ← x + cross(x, source),  x ← x + mlp(x)", LAYERS,
    ),
    "FeedForward": Explanation(
        "Feed-forward layer", "Changes each token by itself: wider, an activation, and back.",
        "y = W₂ f(W₁ x + b₁) + b₂", LAYERS,
    ),
    "PostNorm": Explanation(
        "Add & norm", "Adds what a sublayer computed to its input, then normalizes.", "norm(x + sublayer(x))", LAYERS
    ),
    "PreNorm": Explanation(
        "Norm & add", "Normalizes, and adds what a sublayer computes to its input.", "x + sublayer(norm(x))", LAYERS
    ),
    "LayerNorm": Explanation(
        "Layer norm", "Shifts and scales each vector to mean 0 and variance 1, then by trained g and b.",
        "g (x − mean) / √(variance + ε) + b", LAYERS,
    ),
    "BatchNorm2d": Explanation(
        "Batch norm", "Shifts and scales each channel by its mean and variance in training.",
        "g (x − mean) / √(variance + ε) + b", PIXELS,
    ),
    "ReLU": Explanation("ReLU", "Sets what is negative to zero.", "max(0, x)", LAYERS),
    "Linear": LINEAR,
    "Perceptron": PERCEPTRON,
    # recurrent
    "Stack": STACK,
    "Layer": Explanation("Recurrent layer", "Reads one step after the other.", "h_t = RNN(x_t, h_{t−1})", STATES),
    "BidirectionalLayer": Explanation(
        "Both directions", "One layer reads forwards, one backwards.", "h_t = [h→_t ; h←_t]", STATES
    ),
    "Reader": Explanation(
        "One direction", "Layers that read the text in one direction.", "x_l = x_{l−1} + P LSTM(x_{l−1})", STATES
    ),
    "LSTM": Explanation(
        "LSTM cell", "Gates decide what a long-term memory forgets, takes in and shows.",
        "c' = f∘c + i∘tanh(…),  h' = o∘tanh(c')", STATES,
    ),
    "GRU": Explanation(
        "GRU cell", "Two gates mix the old state with a new one.", "h' = z∘h + (1 − z)∘tanh(W x + r∘(U h))", STATES
    ),
    "Elman": Explanation("Recurrent cell", "Mixes the input with the last state.", "h' = tanh(W x + U h + b)", STATES),
    "Nary": Explanation(
        "Tree cell", "An LSTM cell with a forget gate for each child.", "c = i∘g + Σ f_k∘c_k", ("source",)
    ),
    "Gates": Explanation("Gates", "Turn sums into a cell and a state.", "c = i∘g + kept,  h = o∘tanh(c)", STATES),
    "RecurrentReader": Explanation(
        "Encoder", "Reads the source; its states are what the decoder starts from or attends to.",
        "h_t = RNN(x_t, h_{t−1})", STATES,
    ),
    "NoAttention": Explanation(
        "Decoder", "Knows the source from its first state only.", "h_t = RNN(x_t, h_{t−1}),  y_t = W h_t", STATES
    ),
    "InputFeeding": Explanation(
        "Decoder", "Attends to the source before each step, and reads what it finds.",
        "h_t = RNN([context_t ; x_t], h_{t−1})", ("alignment", *STATES),
    ),
    "OutputJoining": Explanation(
        "Decoder", "Attends to the source after each step, and joins what it finds to its output.",
        "y_t = tanh(W [h_t ; context_t])", ("alignment", *STATES),
    ),
    "Unattended": Explanation(
        "Decoder", "Sees the image once, in its first state.", "h_t = RNN(y_{t−1}, h_{t−1})", STATES
    ),
    "CrossAttended": Explanation(
        "Decoder", "Blocks that attend to the words so far, then to the image.", "x ← x + cross(x, image)", STATES
    ),
    "Attended": Explanation(
        "Decoder", "Looks at the image before each word, and writes the word.",
        "h_t = RNN([z_t ; y_{t−1}], h_{t−1})", STATES,
    ),
    "Stochastic": Explanation(
        "Code", "A random vector that holds the whole sentence.", "z ~ N(mean, variance)", ("source",)
    ),
    "Planner": Explanation(
        "Planner", "Chooses the topic and the regions of each sentence.", "topic_s = tanh(W [h_s ; context_s])",
        ("paragraph",),
    ),
    "RegionReader": Explanation(
        "Regions", "A vector for each region of the image, from its pixels and its place.",
        "v_r = relu(W pooled_r + U place_r)", ("paragraph",),
    ),
    # images
    "Conv2d": CONVOLUTION,
    "Conv1d": CONVOLUTION,
    "Convolution": CONVOLUTION,
    "ConvRelu": CONVOLUTION._replace(about="Filters over the image, then max(0, x).", equation="relu(W ∗ x + b)"),
    "ConvNorm": CONVOLUTION._replace(about="Filters over the image, then a norm.", equation="norm(W ∗ x)"),
    "ConvNormRelu": CONVOLUTION._replace(
        about="Filters over the image, a norm, then max(0, x).", equation="relu(norm(W ∗ x))"
    ),
    "GatedConvolution": CONVOLUTION._replace(
        about="Filters over neighbouring tokens, with a gate.", equation="(x + a∘σ(b)) / √2,  [a ; b] = W ∗ x",
        views=LAYERS,
    ),
    "Filters": CONVOLUTION._replace(
        about="Filters over neighbouring words; the largest value of each is kept.",
        equation="max over t of relu(W ∗ x + b)", views=("source",),
    ),
    "MaxPool2d": POOL,
    "AvgPool2d": Explanation("Average pooling", "Averages each small window.", "y = mean over a window of x", PIXELS),
    "AdaptiveAvgPool2d": Explanation(
        "Average pooling", "Averages the map to a small grid.", "y = mean over a window of x", PIXELS
    ),
    "Residual": Explanation(
        "Residual block", "Adds what two convolutions compute to their input.", "relu(body(x) + shortcut(x))", PIXELS
    ),
    "Inception": Explanation(
        "Inception", "Filters of several sizes side by side.", "[1×1 ; 3×3 ; 5×5 ; pool]", PIXELS
    ),
    "SideClassifier": Explanation(
        "Side classifier", "Guesses the class early; used in training only.", "logits = W f(mean(x))", ("image",)
    ),
    "Upsample": Explanation("Upsampling", "Repeats rows and columns.", "y[2i, 2j] = x[i, j]", PIXELS),
    "Flatten": Explanation("Flatten", "Writes a map as one vector.", "(C, Y, X) → (C·Y·X)", PIXELS),
    "Unflatten": Explanation("Reshape", "Writes a vector as a map.", "(C·Y·X) → (C, Y, X)", PIXELS),
    "Network": Explanation("Layers", "Layers one after the other.", "y = f_n(… f_1(x))", ("reconstruct",)),
    "GlimpseNetwork": Explanation(
        "Glimpse", "A vector of what is seen, and where.", "g = relu(W what + V where)", ("glimpses",)
    ),
    "GlimpseSensor": Explanation(
        "Retina", "Patches around one place, each wider and coarser than the one before.", "image, place → patches",
        ("glimpses",),
    ),
    # heads, columns and lists
    "Pooler": Explanation(
        "Pooler", "A vector of the whole text, from its first token.", "tanh(W x₁ + b)", ("map", "source")
    ),
    "MaskedTokenHead": Explanation(
        "Masked-token head", "A score for every token of the vocabulary, at a masked place.",
        "logits = norm(f(W x)) Eᵀ + b", ("fill", "ablation", "source"),
    ),
    "TokenBias": Explanation("Token bias", "Added to the logits.", "logits = x Eᵀ + b", ("fill", "source")),
    "Discriminator": Explanation(
        "Discriminator", "Tells styles apart, and texts that are generated.", "texts → logits of styles", ("source",)
    ),
    "TextColumn": Explanation("Texts", "A vector of a column's text.", "x = W text + b"),
    "NumbersColumn": Explanation("Numbers", "A vector of a column's numbers.", "x = W numbers + b"),
    "ClassColumn": Explanation("Classes", "A vector for each class of a column.", "x = E[class]"),
    "ImageColumn": Explanation("Images", "A vector of a column's image.", "x = W map + b"),
    "Sequential": DENSE,
    "ModuleList": DENSE,
    "ModuleDict": DENSE,
}  # fmt: skip
EXPLANATIONS |= dict.fromkeys(("TransformerReader", "ConvolutionReader", "EncodedText"), ENCODER)
EXPLANATIONS |= dict.fromkeys(("RecurrentWords", "Embedder"), STACK)
ENCODERS = ("Bert", "Roberta", "DistilBert", "Albert", "XlmRoberta", "XLNet", "Linformer", "BigBird", "RnnEncoder")
EXPLANATIONS |= dict.fromkeys((*ENCODERS, "ConvEncoder"), ENCODER)
EXPLANATIONS |= dict.fromkeys(("ResNet", "LeNet", "AlexNet", "Vgg", "GoogLeNet", "Vit"), IMAGES)


def explanation(kind: str) -> Explanation:
    """What a part of a class does; of a user's own class, only its name is known."""
    return EXPLANATIONS.get(kind) or Explanation(kind, "A module of this model's own.", "", ("source",))
