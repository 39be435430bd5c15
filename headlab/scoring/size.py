"""How large and how costly a pruned Transformer is, by arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass

from headlab.attention.heads import Layout


@dataclass(frozen=True)
class ModelShape:
    """An encoder-decoder Transformer before pruning; vocabularies in pieces, the other sizes in units.

    A language model is ``encoder_layers=0`` with a layout of ``dec-self`` alone.
    """

    encoder_layers: int
    decoder_layers: int
    heads: int
    dim: int
    ffn: int
    source_vocabulary: int
    target_vocabulary: int
    tied_output: bool = True  # the decoder's input embedding is its output projection
    norm: str = "post"  # post | pre: pre-norm ends either stack with one more layer norm
    shared_embeddings: bool = False  # the encoder reads the decoder's table

    @property
    def head_dim(self) -> int:
        """Width of one head; pruning leaves it as it is."""
        return self.dim // self.heads


def parameters(shape: ModelShape, layout: Layout, embeddings: bool) -> int:
    """Number of parameters of ``shape`` with the heads of ``layout``.

    Projections have biases, layer norms a weight and a bias; positional embeddings are sinusoidal and have none.
    A layer without heads still has the bias of its output projection. Without ``embeddings`` the
    embedding tables and the output projection are left out, as in Ni et al. 2023.
    """
    layer_norm = 2 * shape.dim
    per_head = 3 * shape.head_dim * (shape.dim + 1) + shape.head_dim * shape.dim  # rows of Q, K, V, columns of out
    modules = sum(len(layers) for layers in layout.kept.values())
    attention = layout.count() * per_head + modules * (shape.dim + layer_norm)

    blocks = shape.encoder_layers + shape.decoder_layers
    feed_forward = blocks * (2 * shape.dim * shape.ffn + shape.ffn + shape.dim + layer_norm)

    stacks = (shape.encoder_layers > 0) + (shape.decoder_layers > 0)
    final_norms = stacks * layer_norm if shape.norm == "pre" else 0

    total = attention + feed_forward + final_norms
    if embeddings:
        words = shape.target_vocabulary
        if shape.encoder_layers and not shape.shared_embeddings:
            words += shape.source_vocabulary
        if not shape.tied_output:
            words += shape.target_vocabulary
        total += words * shape.dim
    return total


def flops(shape: ModelShape, layout: Layout, source_len: int = 30, target_len: int = 30) -> int:
    """Multiply-accumulates of one forward of one sentence pair, the output projection included.

    Counted are the matrix products (as Ni et al. 2023 do): no biases, norms, softmax or embedding look-ups; the
    causal mask saves nothing. Lengths are in tokens. Twice this is what torch's FlopCounterMode counts.
    """
    query_and_key_lens = {
        "enc-self": (source_len, source_len),
        "dec-self": (target_len, target_len),
        "enc-dec": (target_len, source_len),
    }
    total = 0
    for kind, (query_len, key_len) in query_and_key_lens.items():
        width = layout.count([kind]) * shape.head_dim  # summed over the layers
        projections = 2 * (query_len + key_len) * shape.dim * width  # Q and out on queries, K and V on keys
        products = 2 * query_len * key_len * width  # Q times K, weights times V
        total += projections + products
    tokens = shape.encoder_layers * source_len + shape.decoder_layers * target_len
    total += 2 * tokens * shape.dim * shape.ffn
    return total + target_len * shape.dim * shape.target_vocabulary
