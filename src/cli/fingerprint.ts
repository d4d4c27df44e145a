import { createHash } from 'node:crypto';
import type { TokenizerFiles } from '../control/models/tokenizer-files.ts';

export interface FingerprintParts {
  version: string;
  /** Its digest also tells which models were registered on it, so not all that its texts say is in it. */
  model: { digest: string; texts: { tokenizer: TokenizerFiles } };
  dtype: string;
  isa: string;
}

/** Names everything that decides a token: the build, the weights, the texts around a chat, the arithmetic and the kernels. */
export function systemFingerprint({ version, model, dtype, isa }: FingerprintParts): string {
  const { chatTemplate, toolTemplate, addedTokens, specialTokens } = model.texts.tokenizer;
  // Some have files of their own: chat_template.jinja, added_tokens.json, special_tokens_map.json.
  const around = JSON.stringify([chatTemplate, toolTemplate, addedTokens, Object.entries(specialTokens)]);
  const text = [version, model.digest, around, dtype, isa].join('\n');
  return `fp_${createHash('sha256').update(text).digest('hex').slice(0, 16)}`;
}
