/** Tool calls as a grammar: whatever the model writes under it, the reply parser reads as calls with valid arguments. */
import { writeJson } from '../json-numbers.ts';
import type { ToolParserName } from './parsers/create-parser.ts';
import { SessionError, type ReplyOptions } from './session.ts';
import { strictFormat } from './strict-tools.ts';
import { schemaFormat, type Tool } from './tag-formats.ts';

/** The calls of a reply as a structural tag's format; null where they are free or there are none. */
export function toolFormat(options: ReplyOptions, toolParser: ToolParserName | null): string | null {
  const { tools: mode, toolDefinitions, parallelToolCalls } = options;
  if (mode === 'none' || (mode === 'auto' && !toolDefinitions.some(isStrict))) return null;
  const tools = toolDefinitions.map(readTool);
  if (mode === 'auto') return writeJson(strictFormat(tools, toolParser, parallelToolCalls));
  if (mode === 'required') return requiredFormat(tools, parallelToolCalls);
  const tool = tools.find(({ name }) => name === mode.named);
  if (!tool) throw new SessionError('bad_request', 'The named tool is not among the tools.', 'tool_choice');
  return writeJson(schemaFormat(tool.parameters));
}

/** `[{"name": "f", "parameters": {...}}, ...]`. */
function requiredFormat(tools: Tool[], parallel: boolean): string {
  const tags = tools.map((tool) => ({
    type: 'tag',
    begin: `{"name": ${JSON.stringify(tool.name)}, "parameters": `,
    content: schemaFormat(tool.parameters),
    end: '}',
  }));
  const calls = { type: 'tags_with_separator', tags, separator: ', ', at_least_one: true, stop_after_first: !parallel };
  const elements = [{ type: 'const_string', value: '[' }, calls, { type: 'const_string', value: ']' }];
  return writeJson({ type: 'sequence', elements });
}

export function isStrict(definition: unknown): boolean {
  return functionOf(definition)['strict'] === true;
}

function functionOf(definition: unknown): Record<string, unknown> {
  return (definition as { function: Record<string, unknown> }).function;
}

function readTool(definition: unknown, index: number): Tool {
  const fn = functionOf(definition);
  const name = String(fn['name']);
  return { name, parameters: objectSchema(fn['parameters'], index), strict: fn['strict'] === true, index };
}

/** Arguments are always an object. A function without parameters takes none. */
function objectSchema(schema: unknown, index: number): Record<string, unknown> {
  if (schema === null || schema === undefined) return { type: 'object', additionalProperties: false };
  const { type } = schema as { type?: unknown };
  const types = Array.isArray(type) ? type : [type];
  if (type !== undefined && !types.includes('object')) {
    const param = `tools.${index}.function.parameters`;
    throw new SessionError('bad_request', `${param} must describe an object: arguments have names.`, param);
  }
  return { ...(schema as Record<string, unknown>), type: 'object' };
}
