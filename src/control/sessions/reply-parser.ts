/** Which parsers a model's replies go through, and one for each choice of a request. */
import {
  createOutputParser,
  needsSpecialTokens,
  type OutputParserOptions,
  type ReasoningParserName,
  type ToolMode,
  type ToolParserName,
} from './parsers/create-parser.ts';
import type { TokenizerFiles } from '../models/tokenizer-files.ts';
import { detectParsers } from './parsers/detect-parsers.ts';
import type { OutputParser } from './parsers/output-parser.ts';
import { promptReasoning, promptReasoningAtEnd, type PromptReasoning } from './parsers/reasoning.ts';
import {
  SessionError,
  type ContentPart,
  type GenerationInput,
  type PromptInput,
  type ReplyOptions,
  type SessionsOptions,
} from './session.ts';
import { isStrict } from './tool-grammar.ts';

export interface ModelParsers {
  tool: ToolParserName | null;
  reasoning: ReasoningParserName | null;
}

export function chooseParsers(
  options: Pick<SessionsOptions, 'toolParser' | 'reasoningParser'>,
  { chatTemplate, toolTemplate }: Pick<TokenizerFiles, 'chatTemplate' | 'toolTemplate'>,
): ModelParsers {
  const { toolParser = 'auto', reasoningParser = 'auto' } = options;
  const found = detectParsers(chatTemplate ?? '');
  const calls = toolTemplate === null ? found : detectParsers(toolTemplate);
  return {
    tool: toolParser === 'auto' ? calls.tool : toolParser,
    reasoning: reasoningParser === 'auto' ? found.reasoning : reasoningParser,
  };
}

export interface ReplyParsing {
  create(): OutputParser;
  options: ReplyOptions;
  /** Marks of calls may be special tokens: they must show in the text. */
  showSpecialTokens: boolean;
  countsReasoning: boolean;
  toolParser: ToolParserName | null;
  /** Before a constrained reply: none; perhaps, between tags; open, up to the closing tag. */
  thoughts: 'none' | 'perhaps' | 'open';
}

/** What no prompt could change is refused before one is rendered. */
export function checkToolFormat({ reply }: GenerationInput, parsers: ModelParsers): void {
  if (reply === null || !reply.needsToolFormat || !chosenInUnknownFormat(reply, parsers)) return;
  const message = '"auto" tool choice requires --tool-call-parser to be set: the format of the calls is not known.';
  throw new SessionError('bad_request', message, 'tool_choice');
}

function chosenInUnknownFormat(reply: ReplyOptions, parsers: ModelParsers): boolean {
  return reply.tools === 'auto' && parsers.tool === null;
}

/**
 * `input` has passed checkToolFormat. null when the whole output is content. `promptEnd`: the text of the prompt's
 * last tokens, those of a continued text and some before it.
 */
export function replyParsing(input: GenerationInput, parsers: ModelParsers, promptEnd: string): ReplyParsing | null {
  const { reply, prompt } = input;
  if (reply === null || prompt.kind !== 'chat') return null;
  const unknown = chosenInUnknownFormat(reply, parsers);
  const forced = input.constraint !== null || isForced(reply.tools);
  // Constrained content holds no calls.
  const tools = unknown || (input.constraint !== null && reply.tools === 'auto') ? 'none' : reply.tools;
  const constrained = forced || (tools === 'auto' && reply.toolDefinitions.some(isStrict));
  const withoutThoughts = !reply.includeReasoning && (isForced(reply.tools) || leavesNoThoughts(input));
  const found = reasoningOf(input, promptEnd);
  const promptReasoning = withoutThoughts && found === 'open' ? 'closed' : found;
  const options: OutputParserOptions = {
    tools,
    toolParser: parsers.tool,
    toolDefinitions: reply.toolDefinitions,
    reasoningParser: parsers.reasoning,
    promptReasoning,
    constrained,
    parallelToolCalls: reply.parallelToolCalls,
    callTiming: reply.streamsCalls ? 'begun' : 'complete',
    includeReasoning: reply.includeReasoning,
  };
  return {
    create: () => createOutputParser(options),
    options: { ...reply, tools },
    toolParser: parsers.tool,
    thoughts: withoutThoughts ? 'none' : thoughtsBefore(options),
    showSpecialTokens: needsSpecialTokens(options),
    countsReasoning: parsers.reasoning !== null,
  };
}

/** Structural tags have free text, in which a model that reasons would do so: its thoughts come before them. */
function leavesNoThoughts({ constraint }: GenerationInput): boolean {
  return constraint !== null && constraint.grammar.source.kind !== 'structural_tag';
}

function isForced(tools: ToolMode): boolean {
  return tools === 'required' || typeof tools === 'object';
}

function thoughtsBefore({ reasoningParser, promptReasoning }: OutputParserOptions): ReplyParsing['thoughts'] {
  if (reasoningParser === null || reasoningParser === 'harmony' || promptReasoning === 'closed') return 'none';
  return promptReasoning === 'open' ? 'open' : 'perhaps';
}

/** In the message that is continued, else at the end of what the template wrote before the reply. */
function reasoningOf({ prompt }: GenerationInput, promptEnd: string): PromptReasoning {
  const texts = continuedTexts(prompt);
  const own = promptReasoning(texts.join(''));
  if (own !== 'none') return own;
  // Templates strip the texts, and join them without anything or by line breaks.
  const end = promptEnd.trimEnd();
  const written = ['', '\n'].map((between) => texts.join(between).trim()).find((text) => end.endsWith(text));
  return written === undefined ? 'none' : promptReasoningAtEnd(end.slice(0, end.length - written.length));
}

/** UTF-8 bytes, and so most tokens, of the text of which the reply is the continuation. */
export function continuedLength(prompt: PromptInput): number {
  return Buffer.byteLength(continuedTexts(prompt).join('\n'));
}

/** None where the reply is a message of its own. */
function continuedTexts(prompt: PromptInput): string[] {
  if (prompt.kind !== 'chat' || !prompt.render.continueFinalMessage) return [];
  const content = prompt.messages.at(-1)?.content ?? '';
  return typeof content === 'string' ? [content] : content.map(textOf);
}

function textOf(part: ContentPart): string {
  return typeof part['text'] === 'string' ? part['text'] : '';
}
