/** A model that answers every chat with one known text, a token per byte: what a server must send is known to the byte. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { BYTE_TOKENIZER_SIZE, END_OF_TEXT, IM_END, IM_START } from '../fixtures/byte-tokenizer.ts';
import { writeTableModel } from '../fixtures/table-model.ts';

/** Before a message; before the reply; after the reply. */
export const USER = IM_START;
export const ASSISTANT = END_OF_TEXT;
export const END = IM_END;

/** Far enough above all others that sampling at temperature 1 never takes another token. */
const CERTAIN = 64;

const TEMPLATE =
  '{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}' +
  '{% if add_generation_prompt %}<|endoftext|>{% endif %}';

/** No byte may occur twice in the reply: the next one depends on the last one only. */
export function writeScriptedModel(directory: string, reply: string): void {
  const bytes = [...Buffer.from(reply)];
  if (new Set(bytes).size !== bytes.length) throw new Error('A byte occurs twice: the next one would be ambiguous.');
  const next = new Map([ASSISTANT, ...bytes].map((token, at) => [token, bytes[at] ?? END]));
  // With ignore_eos the reply begins again.
  next.set(END, bytes[0] ?? END);
  const logits = (token: number, row: Float32Array) => void (row[next.get(token) ?? END] = CERTAIN);
  writeTableModel(directory, { vocabSize: BYTE_TOKENIZER_SIZE, logits });
  const path = join(directory, 'tokenizer_config.json');
  const config = JSON.parse(readFileSync(path, 'utf8')) as object;
  writeFileSync(path, JSON.stringify({ ...config, chat_template: TEMPLATE }));
}
