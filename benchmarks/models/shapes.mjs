/** The shapes that the benchmarks run on: Qwen3's, with random weights. */

/** Special tokens close the tokenizer; the ids after them up to `vocab` are rows that no text reaches. */
const SPECIALS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];

export const shapes = {
  /** Qwen3-0.6B: what the numbers speak of. 1.2 GB in BF16. */
  'qwen3-0.6b': {
    layers: 28,
    hidden: 1024,
    heads: 16,
    kvHeads: 8,
    headDim: 128,
    ffn: 3072,
    vocab: 151_936,
    tokenizer: 151_669,
    context: 40_960,
  },
  /** Four of Qwen3-30B-A3B's 48 layers, with the starter's few words: what mixtures of experts cost. 4.9 GB in BF16. */
  'qwen3-moe': {
    layers: 4,
    hidden: 2048,
    heads: 32,
    kvHeads: 4,
    headDim: 128,
    experts: { count: 128, used: 8, size: 768 },
    ffn: 6144,
    vocab: 4096,
    tokenizer: 4000,
    context: 40_960,
  },
  /** Small enough for a check of the benchmark itself. 22 MB. */
  small: {
    layers: 4,
    hidden: 512,
    heads: 8,
    kvHeads: 4,
    headDim: 64,
    ffn: 1024,
    vocab: 4096,
    tokenizer: 4000,
    context: 8192,
  },
  /** A large vocabulary over next to no model: what sampling costs. 20 MB. */
  wide: {
    layers: 1,
    hidden: 64,
    heads: 2,
    kvHeads: 1,
    headDim: 32,
    ffn: 128,
    vocab: 151_936,
    tokenizer: 151_669,
    context: 4096,
  },
};

export const ROPE_THETA = 1_000_000;
export const RMS_EPS = 1e-6;

export function specialTokens(shape) {
  return SPECIALS.map((content, index) => ({ content, id: shape.tokenizer - SPECIALS.length + index }));
}

/** The feed-forward of a layer. GGUF has all experts in one tensor; `names` are those of its parts in the other format. */
function feedForward({ hidden, ffn, experts }, hf, gg, matrix) {
  if (!experts) {
    return [
      matrix(`${hf}.mlp.gate_proj.weight`, `${gg}.ffn_gate.weight`, ffn, hidden),
      matrix(`${hf}.mlp.up_proj.weight`, `${gg}.ffn_up.weight`, ffn, hidden),
      matrix(`${hf}.mlp.down_proj.weight`, `${gg}.ffn_down.weight`, hidden, ffn),
    ];
  }
  const all = (kind, rows, columns) => ({
    names: Array.from({ length: experts.count }, (_, i) => `${hf}.mlp.experts.${i}.${kind}_proj.weight`),
    gguf: `${gg}.ffn_${kind}_exps.weight`,
    shape: [experts.count, rows, columns],
    deviation: columns ** -0.5,
    experts,
  });
  const router = matrix(`${hf}.mlp.gate.weight`, `${gg}.ffn_gate_inp.weight`, experts.count, hidden);
  return [
    // Logits of the router spread as those of a trained one.
    { ...router, deviation: 2 * router.deviation, plain: true },
    all('gate', experts.size, hidden),
    all('up', experts.size, hidden),
    all('down', hidden, experts.size),
  ];
}

/** Hugging Face name, GGUF name, shape (rows, columns) and the standard deviation of its weights; `plain`: F32 in GGUF. */
export function tensorsOf(shape) {
  const { hidden, heads, kvHeads, headDim } = shape;
  const matrix = (name, gguf, rows, columns) => ({ name, gguf, shape: [rows, columns], deviation: columns ** -0.5 });
  const norm = (name, gguf, length) => ({ name, gguf, shape: [length], norm: true, plain: true });
  const list = [{ ...matrix('model.embed_tokens.weight', 'token_embd.weight', shape.vocab, hidden), deviation: 0.1 }];
  for (let i = 0; i < shape.layers; i++) {
    const [hf, gg] = [`model.layers.${i}`, `blk.${i}`];
    list.push(
      norm(`${hf}.input_layernorm.weight`, `${gg}.attn_norm.weight`, hidden),
      matrix(`${hf}.self_attn.q_proj.weight`, `${gg}.attn_q.weight`, heads * headDim, hidden),
      matrix(`${hf}.self_attn.k_proj.weight`, `${gg}.attn_k.weight`, kvHeads * headDim, hidden),
      matrix(`${hf}.self_attn.v_proj.weight`, `${gg}.attn_v.weight`, kvHeads * headDim, hidden),
      matrix(`${hf}.self_attn.o_proj.weight`, `${gg}.attn_output.weight`, hidden, heads * headDim),
      norm(`${hf}.self_attn.q_norm.weight`, `${gg}.attn_q_norm.weight`, headDim),
      norm(`${hf}.self_attn.k_norm.weight`, `${gg}.attn_k_norm.weight`, headDim),
      norm(`${hf}.post_attention_layernorm.weight`, `${gg}.ffn_norm.weight`, hidden),
      ...feedForward(shape, hf, gg, matrix),
    );
  }
  list.push(norm('model.norm.weight', 'output_norm.weight', hidden));
  return list;
}

export function elements(tensor) {
  return tensor.shape.reduce((product, size) => product * size, 1);
}

const BITS = { bf16: 16, q8_0: 8.5, q4_0: 4.5 };

/** The share of a layer's experts that so many tokens go to, where they choose by chance. */
function expertShare({ count, used }, tokens) {
  return 1 - (1 - used / count) ** tokens;
}

/**
 * Bytes that a decode step of so many streams must read: every matrix once (embedding rows are gathered, the tied head is read), of experts those
 * that are used.
 */
export function weightBytes(shape, format, streams = 1) {
  const bits = (tensor) => elements(tensor) * (tensor.plain ? 32 : BITS[format]);
  return tensorsOf(shape).reduce(
    (sum, tensor) => sum + (bits(tensor) * (tensor.experts ? expertShare(tensor.experts, streams) : 1)) / 8,
    0,
  );
}

/** Bytes of a token's keys and values in all layers, 16 bits each. */
export function kvBytes({ layers, kvHeads, headDim }) {
  return layers * 2 * kvHeads * headDim * 2;
}

/** Floating-point operations of the matrices for one token, without and with the logits. */
export function flopsPerToken(shape) {
  const matrices = tensorsOf(shape).filter((tensor) => !tensor.norm);
  const share = ({ experts }) => (experts ? experts.used / experts.count : 1);
  const all = matrices.reduce((sum, tensor) => sum + 2 * elements(tensor) * share(tensor), 0);
  return { withoutLogits: all - 2 * shape.vocab * shape.hidden, withLogits: all };
}
