/**
 * A byte-level BPE tokenizer without real merges: every byte of a text is one token, so a prompt of n ASCII letters has n tokens,
 * and every other id decodes to a short word of its own, so that generated text has a natural size.
 */
import { specialTokens } from './shapes.mjs';

/** The printable stand-in of each byte, as byte-level BPE files write them. */
function byteAlphabet() {
  const printable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
}

/** Tokens by id, specials last. Files of this kind have at least one merge: this one joins two bytes that no text holds. */
export function vocabulary(shape) {
  const alphabet = byteAlphabet();
  const specials = specialTokens(shape);
  const words = shape.tokenizer - alphabet.length - 1 - specials.length;
  const space = alphabet[32];
  const tokens = [...alphabet, alphabet[0] + alphabet[1]];
  for (let i = 0; i < words; i++) tokens.push(`${space}w${i.toString(36)}`);
  for (const { content } of specials) tokens.push(content);
  return { tokens, merges: [`${alphabet[0]} ${alphabet[1]}`], specials };
}

export function tokenizerJson(shape) {
  const { tokens, merges, specials } = vocabulary(shape);
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: specials.map(({ id, content }) => ({ id, content, ...flags })),
    normalizer: null,
    pre_tokenizer: byteLevel,
    post_processor: byteLevel,
    decoder: byteLevel,
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: '',
      end_of_word_suffix: '',
      fuse_unk: false,
      byte_fallback: false,
      vocab: Object.fromEntries(tokens.slice(0, -specials.length).map((token, id) => [token, id])),
      merges,
    },
  };
}

export const CHAT_TEMPLATE =
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

export function tokenizerConfig(shape) {
  const added = specialTokens(shape).map(({ id, content }) => [
    id,
    { content, lstrip: false, normalized: false, rstrip: false, single_word: false, special: true },
  ]);
  return {
    tokenizer_class: 'Qwen2Tokenizer',
    add_bos_token: false,
    bos_token: null,
    eos_token: '<|im_end|>',
    pad_token: '<|endoftext|>',
    model_max_length: shape.context,
    clean_up_tokenization_spaces: false,
    added_tokens_decoder: Object.fromEntries(added),
    chat_template: CHAT_TEMPLATE,
  };
}
