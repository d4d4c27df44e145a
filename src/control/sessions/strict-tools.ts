/**
 * Strict tools where the model chooses its calls: free text, and from a call's first mark on only what the reply parser of the
 * model's format reads as a call with valid arguments. Without `strict` a tool's arguments are free, its name is not.
 */
import type { ToolParserName } from './parsers/create-parser.ts';
import { pythonParameters, taggedParameters } from './parameter-grammar.ts';
import { SessionError } from './session.ts';
import { constant, either, schemaFormat, sequence, tag, type Format, type Tool } from './tag-formats.ts';

interface Layout {
  /** Texts that begin a call. */
  triggers: string[];
  tags: Format[];
  /** Nothing may follow a call. */
  endsTurn?: boolean;
}

/** At most one call where `parallel` is false. */
export function strictFormat(tools: Tool[], parser: ToolParserName | null, parallel: boolean): Format {
  if (parser === 'pythonic') return pythonic(tools, parallel);
  const { triggers, tags, endsTurn = false } = layoutOf(tools, parser, parallel);
  return { type: 'triggered_tags', triggers, tags, at_least_one: false, stop_after_first: !parallel || endsTurn };
}

function layoutOf(tools: Tool[], parser: ToolParserName | null, parallel: boolean): Layout {
  switch (parser) {
    case 'hermes':
      return { triggers: ['<tool_call>'], tags: tools.map(hermesTag) };
    case 'llama3_json':
      // Any brace may begin a call.
      return { triggers: ['{'], tags: tools.map((tool) => jsonCall('', tool, 'parameters', '}')) };
    case 'mistral':
      return { triggers: ['[TOOL_CALLS]'], tags: mistralTags(tools, parallel) };
    case 'qwen3_coder':
    case 'qwen3_xml':
      return { triggers: ['<tool_call>', '<function='], tags: tools.flatMap(qwenTags) };
    case 'harmony':
      return { triggers: ['to=functions.'], tags: tools.map(harmonyTag), endsTurn: true };
    default: {
      const param = `tools.${tools.findIndex(({ strict }) => strict)}.function.strict`;
      throw new SessionError(
        'bad_request',
        `\`strict\` tools are not supported with the tool format ${parser}.`,
        param,
      );
    }
  }
}

function freeUnlessStrict(tool: Tool): Format {
  return schemaFormat(tool.strict ? tool.parameters : { type: 'object' });
}

function jsonCall(before: string, tool: Tool, key: 'arguments' | 'parameters', end: string): Format {
  return tag(`${before}{"name": ${JSON.stringify(tool.name)}, "${key}": `, freeUnlessStrict(tool), end);
}

/** The rest of a message's header, then its body. The mark behind it, `<|call|>`, ends the turn. */
function harmonyTag(tool: Tool): Format {
  const header = { type: 'regex', pattern: '( ?<\\|channel\\|>(commentary|analysis))?( ?<\\|constrain\\|>json)?' };
  const body = sequence(header, constant('<|message|>'), freeUnlessStrict(tool));
  return tag(`to=functions.${tool.name}`, body, '');
}

function hermesTag(tool: Tool): Format {
  return jsonCall('<tool_call>\n', tool, 'arguments', '}\n</tool_call>');
}

/** `[TOOL_CALLS]` and an array of calls, or one call as `name{...}` or `name[ARGS]{...}`. */
function mistralTags(tools: Tool[], parallel: boolean): Format[] {
  const calls = {
    type: 'tags_with_separator',
    tags: tools.map((tool) => jsonCall('', tool, 'arguments', '}')),
    separator: ', ',
    at_least_one: true,
    stop_after_first: !parallel,
  };
  const array = tag('[TOOL_CALLS]', sequence(either(constant(' '), constant('')), constant('['), calls), ']');
  const named = tools.flatMap((tool) => [
    tag(`[TOOL_CALLS]${tool.name}`, freeUnlessStrict(tool), ''),
    tag(`[TOOL_CALLS]${tool.name}[ARGS]`, freeUnlessStrict(tool), ''),
  ]);
  return [array, ...named];
}

function qwenTags(tool: Tool): Format[] {
  const content = tool.strict ? taggedParameters(tool) : { type: 'any_text' };
  const rest = tool.strict ? '</function>\n</tool_call>' : '</tool_call>';
  const head = `<function=${tool.name}>\n`;
  return [tag(`<tool_call>\n${head}`, content, rest), tag(head, content, rest)];
}

/** A list of calls from the first character on, or text that begins none. */
function pythonic(tools: Tool[], parallel: boolean): Format {
  const calls = {
    type: 'tags_with_separator',
    tags: tools.map((tool) => tag(`${tool.name}(`, pythonParameters(tool), ')')),
    separator: ', ',
    at_least_one: true,
    stop_after_first: !parallel,
  };
  const list = sequence(constant('['), calls, constant(']'));
  const marked = sequence(constant('<|python_start|>'), list, constant('<|python_end|>'));
  return either(list, marked, { type: 'regex', pattern: '([^\\[\\s<][\\s\\S]*)?' });
}
