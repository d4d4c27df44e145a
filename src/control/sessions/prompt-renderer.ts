/** A chat -> the prompt's text and ids. Runs in a render worker; nothing here waits. */
import { mapStrings, SpecialText, unusedMarks } from './special-text.ts';
import { joinInstructions, prepareMessages, prepareTools } from './messages.ts';
import { openMessages, type OpenChat } from './open-chat.ts';
import type { PromptEncoder } from '../models/prompt-encoder.ts';
import { reservedNames } from './reserved-names.ts';
import { SessionError, type ChatMessage, type PromptInput, type RenderOptions } from './session.ts';
import { ChatTemplate } from './template/chat-template.ts';
import { strip } from './template/strings.ts';
import { TemplateError, TemplateRefusal } from './template/errors.ts';
import { MAX_TEXT } from './template/values.ts';
import { encodeWords } from './word-forms.ts';

/** `keepsEnd`: only the prompt's last tokens are wanted, as many as fit the context, so a text may have any length. */
type PromptToRender = Exclude<PromptInput, { kind: 'ids' }> & { keepsEnd?: boolean };
/** `words`: each on its own, as it is and after a space; answered in word-forms.ts's layout. */
export type RenderInput = PromptToRender | { kind: 'words'; words: string[] } | { kind: 'open'; chat: OpenChat };
type ChatInput = Extract<PromptInput, { kind: 'chat' }>;

export interface RenderedPrompt {
  text: string;
  ids: Int32Array;
}

export interface PromptParts {
  template: ChatTemplate | null;
  /** For chats with tools; null: the same. */
  toolTemplate: ChatTemplate | null;
  encoder: PromptEncoder;
  /** bos_token, eos_token, ... */
  specialTokens: Record<string, string>;
  /** Texts that must not be believed in client strings. */
  specialTexts: string[];
  /** Longer texts cannot fit the context: refused before they cost anything. */
  maxTextLength: number;
  maxModelLen: number;
}

const NO_TEMPLATE =
  'As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the ' +
  'tokenizer does not define one.';

/** Far above the templates that models have. */
const MAX_TEMPLATE_LENGTH = 262_144;

/** Roles that every template knows; compared by name, so they are never marked. */
const ROLES = new Set(['system', 'user', 'assistant', 'tool', 'developer', 'function', 'ipython']);

export class PromptRenderer {
  readonly #parts: PromptParts;
  readonly #special: SpecialText;
  /** The last template that came with a request. */
  #requested: ChatTemplate | null = null;

  constructor(parts: PromptParts) {
    this.#parts = parts;
    this.#special = new SpecialText(parts.specialTexts);
  }

  render(input: RenderInput): RenderedPrompt {
    if (input.kind === 'words') return { text: '', ids: encodeWords(this.#parts.encoder, input.words) };
    if (input.kind === 'text') {
      const text = this.#readable(input.text, input);
      return { text, ids: this.#parts.encoder.encode(text, { addSpecialTokens: input.addSpecialTokens, mark: null }) };
    }
    if (input.kind === 'open') return this.#renderOpen(input.chat);
    const { text: whole, mark } = this.#renderChat(input);
    const text = this.#readable(whole, input);
    const ids = this.#parts.encoder.encode(text, { addSpecialTokens: input.render.addSpecialTokens, mark });
    return { text: text.replaceAll(mark, ''), ids };
  }

  /** Of a text that may have any length the end: what stands before it has no part in the last tokens, and would cost time. */
  #readable(text: string, { keepsEnd = false }: Pick<PromptToRender, 'keepsEnd'>): string {
    if (keepsEnd) return text.slice(-this.#parts.maxTextLength);
    this.#checkLength(text.length);
    return text;
  }

  #checkLength(length: number): void {
    const { maxTextLength, maxModelLen } = this.#parts;
    if (length <= maxTextLength) return;
    const message = `This model's maximum context length is ${maxModelLen} tokens. However, your request has ${length} characters of input, which cannot fit. Please reduce the length of the input messages.`;
    throw new SessionError('context_length', message, 'input_text');
  }

  /** Beyond what a template may write, it would be a fault of the template's, and not a chat that is too long. */
  #checkWritable(messages: ChatMessage[]): void {
    const length = lengthOf(messages);
    if (length > MAX_TEXT) this.#checkLength(length);
  }

  #renderChat(input: ChatInput): { text: string; mark: string } {
    const template = this.#template(input.render.chatTemplate, input.render.tools);
    checkKwargs(input.render.templateKwargs);
    this.#checkWritable(input.messages);
    const chat = { messages: input.messages, continues: input.render.continueFinalMessage };
    return renderAccepted(template, chat, (messages) => this.#chatText(template, messages, input.render));
  }

  #chatText(template: ChatTemplate, given: ChatMessage[], render: RenderOptions): { text: string; mark: string } {
    const { tools, documents, templateKwargs: kwargs, addGenerationPrompt, continueFinalMessage } = render;
    const messages = prepareMessages(given, template.content, template.source);
    const marks = unusedMarks([messages, tools, documents, kwargs], [template.source, ...this.#parts.specialTexts], 2);
    if (!marks) throw new SessionError('bad_request', 'The messages hold too many private-use characters.', 'messages');
    const [mark = '', tag = ''] = marks;
    const protect = (value: unknown): unknown => mapStrings(value, (text) => this.#special.mark(text, mark));
    const chat = messages.map((message) => this.#protectMessage(message, mark, template.source));
    const final = continueFinalMessage ? tagFinalMessage(chat, tag) : null;
    const variables = {
      ...this.#parts.specialTokens,
      ...(protect(kwargs) as Record<string, unknown>),
      messages: chat,
      tools: protect(prepareTools(tools)),
      documents: protect(documents),
      add_generation_prompt: addGenerationPrompt,
    };
    const text = template.render(variables);
    return { text: final === null ? text : cutAtTag(text, tag, final), mark };
  }

  /** The text shows one character per open text; the ids have SLOT_OPEN, that text's ids and SLOT_CLOSE in its place. */
  #renderOpen(chat: OpenChat): RenderedPrompt {
    const template = this.#template(null, chat.tools);
    checkKwargs(chat.templateKwargs);
    this.#checkWritable(openMessages(chat, ''));
    const { tools, templateKwargs: kwargs } = chat;
    const texts = [template.source, ...this.#parts.specialTexts];
    const marks = unusedMarks([chat.messages, chat.slots, tools, kwargs], texts, 2);
    if (!marks) throw new SessionError('bad_request', 'The messages hold too many private-use characters.', 'messages');
    const [mark = '', slot = ''] = marks;
    const protect = (value: unknown): unknown => mapStrings(value, (text) => this.#special.mark(text, mark));
    const variables = {
      ...this.#parts.specialTokens,
      ...(protect(kwargs) as Record<string, unknown>),
      tools: protect(prepareTools(tools)),
      documents: null,
      add_generation_prompt: false,
    };
    const open = { messages: openMessages(chat, slot), continues: chat.continueFinalMessage };
    const whole = renderAccepted(template, open, (given) => {
      const messages = prepareMessages(given, template.content, template.source);
      const safe = messages.map((message) => this.#protectMessage(message, mark, template.source));
      return template.render({ ...variables, messages: safe });
    });
    const text = chat.continueFinalMessage ? whole.slice(0, whole.lastIndexOf(slot) + 1) : whole;
    this.#checkLength(text.length);
    const slots = { character: slot, texts: chat.slots.map(({ text: own }) => own) };
    if (text.split(slot).length - 1 !== slots.texts.length) {
      const message = 'The chat template does not show the text of every assistant message exactly once.';
      throw new SessionError('bad_request', message, 'messages');
    }
    return { text, ids: this.#parts.encoder.encode(text, { addSpecialTokens: false, mark, slots }) };
  }

  /** Clients that send a template send the same one again and again. */
  #template(source: string | null, tools: unknown[] | null): ChatTemplate {
    if (source === null) {
      const own = (tools && this.#parts.toolTemplate) ?? this.#parts.template;
      if (own) return own;
      throw new SessionError('bad_request', NO_TEMPLATE, 'messages');
    }
    if (this.#requested?.source !== source) this.#requested = compileRequested(source);
    return this.#requested;
  }

  /** A role is compared by the template: it is marked only when neither every template nor this one knows it. */
  #protectMessage(message: Record<string, unknown>, mark: string, source: string): Record<string, unknown> {
    const role = String(message['role']);
    const known = ROLES.has(role) || source.includes(`'${role}'`) || source.includes(`"${role}"`);
    const safe = mapStrings(message, (text) => this.#special.mark(text, mark)) as Record<string, unknown>;
    return { ...safe, role: known ? role : this.#special.mark(role, mark) + mark };
  }
}

/** Characters of all texts in a value. */
function lengthOf(value: unknown): number {
  let length = 0;
  mapStrings(value, (text) => {
    length += text.length;
    return text;
  });
  return length;
}

function compileRequested(source: string): ChatTemplate {
  if (source.length > MAX_TEMPLATE_LENGTH) {
    const message = `chat_template must have at most ${MAX_TEMPLATE_LENGTH} characters.`;
    throw new SessionError('bad_request', message, 'chat_template');
  }
  try {
    return new ChatTemplate(source);
  } catch (error) {
    if (error instanceof TemplateError) throw new SessionError('bad_request', error.message, 'chat_template');
    throw error;
  }
}

function checkKwargs(kwargs: Record<string, unknown>): void {
  const bad = reservedNames(kwargs);
  if (bad.length === 0) return;
  const names = bad.map((name) => JSON.stringify(name)).join(', ');
  throw new SessionError(
    'bad_request',
    `Found unexpected chat template kwargs from request: {${names}}`,
    'chat_template_kwargs',
  );
}

interface Conversation {
  messages: ChatMessage[];
  /** Its last message is to be continued. */
  continues: boolean;
}

/** With system messages joined where the template refuses them as they stand. */
function renderAccepted<T>(template: ChatTemplate, chat: Conversation, render: (messages: ChatMessage[]) => T): T {
  const { messages, continues } = chat;
  try {
    return render(messages);
  } catch (error) {
    const joined = error instanceof TemplateRefusal ? joinInstructions(messages, template.source, continues) : null;
    if (joined) return renderAccepted(template, { messages: joined, continues }, render);
    if (error instanceof TemplateError) throw new SessionError('bad_request', error.message, 'messages');
    throw error;
  }
}

/** Puts a tag behind the final message's text; its trailing space shows whether the template trims. */
function tagFinalMessage(chat: Record<string, unknown>[], tag: string): string {
  const last = chat.at(-1);
  const content = last?.['content'];
  if ((last?.['tool_calls'] ?? last?.['function_call'] ?? null) !== null) {
    const message = 'continue_final_message is set but the final message calls tools: its calls would be left out.';
    throw new SessionError('bad_request', message, 'continue_final_message');
  }
  if (last && typeof content === 'string') {
    last['content'] = `${content}${tag} `;
    return content;
  }
  const part: unknown = Array.isArray(content) ? content.at(-1) : undefined;
  if (last && Array.isArray(content) && typeof part === 'object' && part !== null && 'text' in part) {
    last['content'] = [...content.slice(0, -1), { ...part, text: `${String(part.text)}${tag} ` }];
    return String(part.text);
  }
  throw new SessionError(
    'bad_request',
    'continue_final_message is set but we could not find any text to continue in the final message!',
    'continue_final_message',
  );
}

/** Everything up to the end of the final message's text; the closing part of its turn is dropped. */
function cutAtTag(text: string, tag: string, final: string): string {
  const at = text.lastIndexOf(tag);
  // Some templates leave out what a reply thought: the rest is not what the client wants continued.
  if (at === -1 || !text.includes(strip(final, null, 'both'))) {
    throw new SessionError(
      'bad_request',
      'continue_final_message is set but the final message does not appear in the chat after applying the chat template!',
      'continue_final_message',
    );
  }
  const trims = text[at + tag.length] !== ' ';
  return trims ? text.slice(0, at).trimEnd() : text.slice(0, at);
}
