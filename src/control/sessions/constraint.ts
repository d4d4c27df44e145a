/** What the reply must be, thoughts before it included, as one grammar. */
import { SERVE } from '../grammar/compile.ts';
import type { NativeGrammarSource } from '../engine/native-grammar.ts';
import type { ReplyParsing } from './reply-parser.ts';
import { SessionError, type ContentConstraint, type GenerationInput } from './session.ts';
import { toolFormat } from './tool-grammar.ts';

const THOUGHTS = '{"type":"tag","begin":"","content":{"type":"any_text"},"end":"</think>"}';

/** null: anything. `parsing`: how the reply will be read, null where all of it is content. */
export function constraintOf(input: GenerationInput, parsing: ReplyParsing | null): ContentConstraint | null {
  const calls = parsing && toolFormat(parsing.options, parsing.toolParser);
  const { constraint } = input;
  const format = calls ?? (constraint && formatOf(constraint.grammar.source));
  if (format === null) return null;
  const options = calls === null && constraint ? constraint.grammar.options : SERVE;
  const thoughts = parsing?.thoughts ?? 'none';
  // Alone a constraint is compiled as the client wrote it.
  if (calls === null && constraint && thoughts === 'none') return constraint;
  const grammar = { source: { kind: 'structural_tag' as const, text: whole(thoughts, format) }, options };
  return calls === null && constraint ? { ...constraint, grammar } : { param: 'tools', grammar };
}

export function refuseBeam(input: GenerationInput, constraint: ContentConstraint | null): void {
  if (constraint === null || input.sampling.beamSearch === null) return;
  const message = `\`use_beam_search\` cannot be used together with \`${constraint.param}\`.`;
  throw new SessionError('bad_request', message, 'use_beam_search');
}

function whole(thoughts: ReplyParsing['thoughts'], format: string): string {
  if (thoughts === 'none') return `{"format":${format}}`;
  const opened = `{"type":"sequence","elements":[{"type":"const_string","value":"<think>"},${THOUGHTS}]}`;
  const first =
    thoughts === 'open' ? THOUGHTS : `{"type":"or","elements":[${opened},{"type":"const_string","value":""}]}`;
  return `{"format":{"type":"sequence","elements":[${first},${format}]}}`;
}

/** A source as a part of a structural tag. Schemas stay as they were written: their numbers keep their digits. */
function formatOf(source: NativeGrammarSource): string {
  switch (source.kind) {
    case 'json_schema':
      return `{"type":"json_schema","json_schema":${source.text}}`;
    case 'json_object':
      return '{"type":"json_schema","json_schema":{"type":"object"}}';
    case 'regex':
      return JSON.stringify({ type: 'regex', pattern: source.text });
    case 'grammar':
      return JSON.stringify({ type: 'grammar', grammar: source.text });
    case 'choice':
      return JSON.stringify({ type: 'choice', choices: source.choices });
    case 'structural_tag':
      return `{"type":"structural_tag","structural_tag":${source.text}}`;
  }
}
