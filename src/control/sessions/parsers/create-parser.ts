/** Parsers by name, put together for one choice of one request. */
import { randomBytes, randomInt, randomUUID } from 'node:crypto';
import type { CallTiming } from './call-reader.ts';
import { NamedMachine, RequiredMachine } from './grammar-calls.ts';
import { HarmonyMachine } from './harmony.ts';
import { HermesMachine } from './hermes.ts';
import { Llama3JsonMachine } from './llama3-json.ts';
import { type Machine, MachineParser, PlainParser } from './machine.ts';
import { MistralMachine } from './mistral.ts';
import type { OutputParser } from './output-parser.ts';
import { PythonicMachine } from './pythonic.ts';
import { Qwen3CoderMachine } from './qwen3-coder.ts';
import { type PromptReasoning, ThinkParser, WithoutReasoning } from './reasoning.ts';
import { parameterSchemas } from './schema-values.ts';

export const TOOL_PARSER_NAMES = [
  'hermes',
  'qwen3_coder',
  'qwen3_xml',
  'llama3_json',
  'mistral',
  'pythonic',
  'harmony',
] as const;
export type ToolParserName = (typeof TOOL_PARSER_NAMES)[number];

export const REASONING_PARSER_NAMES = ['qwen3', 'deepseek_r1', 'harmony'] as const;
export type ReasoningParserName = (typeof REASONING_PARSER_NAMES)[number];

export type ToolMode = 'none' | 'auto' | 'required' | { named: string };

export interface OutputParserOptions {
  /** none: the output is not searched for calls. */
  tools: ToolMode;
  /** The model's format; needed with auto, and for the ids of all calls. */
  toolParser: ToolParserName | null;
  /** The request's `tools`, whose schemas give the types of bare values. */
  toolDefinitions: readonly unknown[];
  reasoningParser: ReasoningParserName | null;
  promptReasoning: PromptReasoning;
  parallelToolCalls: boolean;
  includeReasoning: boolean;
  /** When calls of auto are handed out, in formats that leave a choice. Default complete. */
  callTiming?: CallTiming;
  /** The output is held to a grammar: content, calls in the layout that all formats share, or with auto those of strict tools. Default false. */
  constrained?: boolean;
  /** For tests; absent: random, in the model's own layout. */
  newCallId?: () => string;
}

const BASE62 = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

/** Mistral's template refuses ids that are not 9 letters and digits. */
export function callIdFor(toolParser: ToolParserName | null): string {
  if (toolParser === 'mistral') return Array.from({ length: 9 }, () => BASE62.charAt(randomInt(62))).join('');
  if (toolParser === 'qwen3_coder' || toolParser === 'qwen3_xml') return `call_${randomBytes(12).toString('hex')}`;
  return `chatcmpl-tool-${randomUUID().replaceAll('-', '')}`;
}

/** A parser holds one choice's state: make one per choice. Throws a RangeError for auto without a tool parser. */
export function createOutputParser(options: OutputParserOptions): OutputParser {
  const parser = withReasoning(options, callParser(options));
  return options.includeReasoning ? parser : new WithoutReasoning(parser);
}

/** The marks of calls are special tokens in many models: they show up in the text only with skip_special_tokens false. */
export function needsSpecialTokens(
  options: Pick<OutputParserOptions, 'tools' | 'toolParser' | 'reasoningParser' | 'constrained'>,
): boolean {
  return options.tools === 'auto' || isHarmony(options);
}

function isHarmony(
  options: Pick<OutputParserOptions, 'tools' | 'toolParser' | 'reasoningParser' | 'constrained'>,
): boolean {
  // Strict tools hold the model to its own format; any other grammar has none of it.
  if (options.constrained && options.tools !== 'auto') return false;
  return options.toolParser === 'harmony' || options.reasoningParser === 'harmony';
}

function callParser(options: OutputParserOptions): OutputParser {
  const { callTiming = 'complete' } = options;
  const machine = isHarmony(options)
    ? new HarmonyMachine(options.tools !== 'none', callTiming)
    : callMachine(options, callTiming);
  if (!machine) return new PlainParser();
  const newCallId = options.newCallId ?? (() => callIdFor(options.toolParser));
  return new MachineParser(machine, { newCallId, parallel: options.parallelToolCalls });
}

function callMachine({ tools, toolParser, toolDefinitions }: OutputParserOptions, timing: CallTiming): Machine | null {
  if (tools === 'none') return null;
  if (tools === 'required') return new RequiredMachine();
  if (typeof tools === 'object') return new NamedMachine(tools.named);
  switch (toolParser) {
    case 'hermes':
      return new HermesMachine(timing);
    case 'qwen3_coder':
    case 'qwen3_xml':
      return new Qwen3CoderMachine(parameterSchemas(toolDefinitions));
    case 'llama3_json':
      return new Llama3JsonMachine(timing);
    case 'mistral':
      return new MistralMachine(timing);
    case 'pythonic':
      return new PythonicMachine(timing, parameterSchemas(toolDefinitions));
    default:
      throw new RangeError('automatic tool calls need a tool parser');
  }
}

function withReasoning(options: OutputParserOptions, rest: OutputParser): OutputParser {
  const name = options.reasoningParser;
  if (name === null || name === 'harmony' || isHarmony(options) || options.promptReasoning === 'closed') return rest;
  const startsInReasoning = options.promptReasoning === 'open';
  const callEndsReasoning = name === 'qwen3' && options.constrained !== true;
  return new ThinkParser({ startsInReasoning, callEndsReasoning }, rest);
}
