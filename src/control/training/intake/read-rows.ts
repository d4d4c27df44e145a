/** Training data of an SFT job, one conversation per line: checked line by line and compressed. Runs on an intake thread. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { hasLoneSurrogate } from '../../../schemas/lone-surrogate.ts';
import { isPlainObject } from '../../../schemas/plain-object.ts';
import { invalid, type ValidationError } from '../../../schemas/validation-error.ts';
import { findArgumentsFault, findMessageFault, findSizeFault } from '../chat-parts.ts';
import { conversationOf, type StoredRow } from '../sft-data.ts';
import { sftChat, unrenderable } from '../sft-tokens.ts';
import { parseWithTools, writeRow } from '../tool-numbers.ts';
import { messageOf, ROLES, type HistoryElement, type MessageElement } from '../trajectories.ts';
import type { ChatCheck } from './chat-check.ts';
import { compressed } from './content.ts';
import { MAX_JSON_DEPTH, type IntakeSettings, type RowsRead } from './protocol.ts';

/** Lines of about this size together are compressed at once. */
const BLOCK_BYTES = 2 ** 20;
const LINE_FEED = 0x0a;

export async function readRows(
  source: string,
  target: string,
  settings: IntakeSettings,
  chats: ChatCheck,
): Promise<RowsRead> {
  const output = await open(target, 'w', 0o600);
  try {
    const hash = createHash('sha256');
    const writer = new BlockWriter(output);
    let rows = 0;
    for await (const { line, number } of linesOf(source, settings.maxRowBytes, (bytes) => hash.update(bytes))) {
      if (number > settings.maxRows) throw fault(number, `is one too many: the file may have ${settings.maxRows}.`);
      // A blank line stays, so that a job's numbers of lines are those of the file.
      const row = line.trim() === '' ? null : readRow(line, number);
      if (row !== null) {
        rows++;
        await checkRendering(row, number, settings.chatTemplate, chats);
      }
      await writer.add(row === null ? '\n' : `${writeRow(row)}\n`);
    }
    await writer.flush();
    await output.sync();
    if (rows === 0) throw invalid(['body', 'training_data_url'], 'The training data have no row.');
    return { kind: 'rows', rows, digest: hash.digest('hex') };
  } finally {
    await output.close();
  }
}

async function checkRendering(
  row: StoredRow,
  number: number,
  template: string | null,
  chats: ChatCheck,
): Promise<void> {
  const refusal = await chats.refusal(sftChat(conversationOf(row, number), template));
  if (refusal !== null) throw invalid(['body', 'training_data_url'], unrenderable(number, refusal));
}

class BlockWriter {
  readonly #output: FileHandle;
  #lines: string[] = [];
  #size = 0;

  constructor(output: FileHandle) {
    this.#output = output;
  }

  async add(line: string): Promise<void> {
    this.#lines.push(line);
    this.#size += line.length;
    if (this.#size >= BLOCK_BYTES) await this.flush();
  }

  async flush(): Promise<void> {
    if (this.#lines.length === 0) return;
    const text = this.#lines.join('');
    this.#lines = [];
    this.#size = 0;
    await this.#output.writeFile(await compressed(text));
  }
}

/** Lines numbered from 1. Throws where one is too long or not UTF-8. */
async function* linesOf(
  source: string,
  maxBytes: number,
  seen: (bytes: Buffer) => void,
): AsyncGenerator<{ line: string; number: number }> {
  let parts: Buffer[] = [];
  let size = 0;
  let number = 1;
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const take = (): string => {
    const bytes = Buffer.concat(parts);
    parts = [];
    size = 0;
    try {
      return decoder.decode(bytes);
    } catch {
      throw fault(number, 'is not valid UTF-8.');
    }
  };
  for await (const chunk of createReadStream(source, { highWaterMark: 2 ** 20 })) {
    const bytes = chunk as Buffer;
    seen(bytes);
    let from = 0;
    while (from < bytes.length) {
      const at = bytes.indexOf(LINE_FEED, from);
      const end = at === -1 ? bytes.length : at;
      size += end - from;
      if (size > maxBytes) throw fault(number, `has more than ${maxBytes} bytes.`);
      parts.push(bytes.subarray(from, end));
      if (at !== -1) yield { line: take(), number: number++ };
      from = end + 1;
    }
  }
  if (size > 0) yield { line: take(), number };
}

/** What a job trains on; the rest of a line, such as the log-probabilities of a trajectory, would be parsed again for nothing. */
function readRow(line: string, number: number): StoredRow {
  if (tooDeep(line)) throw fault(number, `is nested deeper than ${MAX_JSON_DEPTH}.`);
  let row: unknown;
  try {
    row = parseWithTools(line);
  } catch (error) {
    throw fault(number, `is no JSON: ${(error as Error).message.slice(0, 120)}`);
  }
  if (hasLoneSurrogate(line, row)) throw fault(number, 'has a string with a lone surrogate.');
  if (!isPlainObject(row)) throw fault(number, 'is no JSON object.');
  const { messages: plain = null, messages_and_choices: elements, tools = null } = row;
  const [name, list] = plain === null ? ['messages_and_choices', elements] : ['messages', plain];
  if (!Array.isArray(list) || list.length === 0) {
    throw fault(number, 'needs `messages` (or `messages_and_choices`), a list that is not empty.');
  }
  const messages = list.map((element: unknown, index) => checkMessage(element, number, `${name}[${index}]`));
  if (messages.at(-1)?.role !== 'assistant') throw fault(number, 'must end with a message of the assistant.');
  if (tools !== null && !(Array.isArray(tools) && tools.every(isPlainObject))) {
    throw faultAt(number, 'tools must be a list of objects.');
  }
  const size = findSizeFault([messages, tools]);
  if (size !== null) throw fault(number, size);
  return { messages, tools };
}

/** A choice of a trajectory counts as the assistant's message. */
function checkMessage(element: unknown, number: number, where: string): MessageElement {
  if (!isPlainObject(element)) throw faultAt(number, `${where} is no object.`);
  const given = element as HistoryElement;
  const message = messageOf(given);
  if (typeof message.role !== 'string') throw faultAt(number, `${where} needs a \`role\`.`);
  if (!ROLES.includes(message.role)) throw faultAt(number, `${where}.role must be one of ${ROLES.join(', ')}.`);
  const content = message.content ?? null;
  if (content !== null && typeof content !== 'string' && !Array.isArray(content)) {
    throw faultAt(number, `${where}.content must be a text, a list of parts, or null.`);
  }
  const wrong = findMessageFault(message) ?? (message.role === 'assistant' ? findArgumentsFault(message) : null);
  if (wrong) throw faultAt(number, `${where}${written(wrong.place)} ${wrong.problem}`);
  return message;
}

/** `.content[0].text` */
function written(place: (string | number)[]): string {
  return place.map((step) => (typeof step === 'number' ? `[${step}]` : `.${step}`)).join('');
}

/** Brackets outside of strings; JSON.parse would recurse as deep. */
function tooDeep(line: string): boolean {
  let depth = 0;
  let inString = false;
  for (let i = 0; i < line.length; i++) {
    const code = line.charCodeAt(i);
    if (inString) {
      if (code === 0x5c) i++;
      else if (code === 0x22) inString = false;
    } else if (code === 0x22) inString = true;
    else if (code === 0x5b || code === 0x7b) {
      if (++depth > MAX_JSON_DEPTH) return true;
    } else if (code === 0x5d || code === 0x7d) depth--;
  }
  return false;
}

function fault(line: number, message: string): ValidationError {
  return invalid(['body', 'training_data_url'], `Line ${line} of the training data ${message}`);
}

/** `message` begins with the place within the line. */
function faultAt(line: number, message: string): ValidationError {
  return invalid(['body', 'training_data_url'], `Line ${line} of the training data: ${message}`);
}
